"""What is usual: robust figures of the requests that one is compared with. Pure."""

import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from appliance.telemetry.evidence import CohortMember

NS_PER_MS = 1e6
MIN_COHORT: Final = 8
"""Fewer members say nothing of what is usual."""
MIN_SIMILAR: Final = 6
MAD_TO_SIGMA: Final = 1.4826
NOISE_SIGMAS: Final = 3.0
NOISE_SHARE: Final = 0.15
NOISE_NS: Final = 3e6
"""Whatever is nearer to the median than the largest of these three is no excess."""
SIMILAR_LENGTH: Final = 0.2
SIMILAR_BATCH: Final = 0.25
LEAST_PREFILL: Final = 16
"""Tokens; below, a prefill's time is that of a step, whatever its length."""
PHASES: Final = ("front", "dispatch", "queue", "prefill", "decode", "stream")

Pick = Callable[[CohortMember], float | None]


class Usual(NamedTuple):
    """How long something usually takes, in nanoseconds."""

    median: float
    spread: float
    """A standard deviation, estimated from the median absolute deviation."""
    p95: float

    def excess(self, value_ns: float) -> float:
        """Return how far a value is above what noise explains; 0: it is not."""
        noise = max(NOISE_SIGMAS * self.spread, NOISE_SHARE * self.median, NOISE_NS)
        over = value_ns - self.median
        return over if over > noise else 0.0


NOTHING: Final = Usual(0.0, 0.0, 0.0)


def _duration(member: CohortMember) -> float:
    return member.duration_ms


_PICKS: dict[str, Pick] = {
    "front": lambda member: member.front_ms,
    "dispatch": lambda member: member.dispatch_ms,
    "queue": lambda member: member.queue_ms,
    "prefill": lambda member: member.prefill_ms,
    "decode": lambda member: member.decode_ms,
    "stream": lambda member: member.stream_ms,
}


class Cohort:
    """The finished requests among the members, or all of them where too few finished."""

    def __init__(self, members: Sequence[CohortMember]) -> None:
        finished = [member for member in members if member.outcome == "finished"]
        self.members = finished if len(finished) >= MIN_COHORT else list(members)

    def __len__(self) -> int:
        return len(self.members)

    @property
    def is_enough(self) -> bool:
        """Whether it says what is usual."""
        return len(self.members) >= MIN_COHORT

    def phase(self, name: str) -> Usual:
        """Return what is usual of a phase; nothing at all when there is no cohort."""
        return self._usual(_PICKS[name])

    @property
    def duration(self) -> Usual:
        """From arrival to the last byte."""
        return self._usual(_duration)

    @property
    def tokens(self) -> float:
        """Median of the output tokens."""
        return self._median(member.completion_tokens for member in self.members)

    @property
    def prompt_tokens(self) -> float:
        """Median of the prompt tokens."""
        return self._median(member.prompt_tokens for member in self.members)

    @property
    def uncached_tokens(self) -> float:
        """Median of the prompt tokens that had to be computed."""
        return self._median(member.prompt_tokens - member.cached_tokens for member in self.members)

    @property
    def token(self) -> Usual:
        """Time per output token: that of a step without anybody's prompt."""
        return self._usual(lambda member: member.tpot_ms)

    @property
    def prompt_token_ns(self) -> float | None:
        """Prefill per uncached token."""
        rates = [
            member.prefill_ms * NS_PER_MS / (member.prompt_tokens - member.cached_tokens)
            for member in self.members
            if member.prefill_ms is not None
            and member.prompt_tokens - member.cached_tokens >= LEAST_PREFILL
        ]
        return statistics.median(rates) if len(rates) >= MIN_SIMILAR else None

    @property
    def batch(self) -> float:
        """Median of the largest batches; 0: not known."""
        return self._median(member.max_batch for member in self.members if member.max_batch)

    def token_in_batch(self, batch: int) -> float | None:
        """Return the usual time per token of requests in about as large batches."""
        near = [
            member.tpot_ms * NS_PER_MS
            for member in self.members
            if member.tpot_ms is not None and abs(member.max_batch - batch) <= SIMILAR_BATCH * batch
        ]
        return statistics.median(near) if len(near) >= MIN_SIMILAR else None

    def cached_share(self, prompt_tokens: int) -> float | None:
        """Return the cached share of prompts of about this length; None: there are too few."""
        shares = [
            member.cached_tokens / member.prompt_tokens
            for member in self.members
            if member.prompt_tokens
            and abs(member.prompt_tokens - prompt_tokens) <= SIMILAR_LENGTH * prompt_tokens
        ]
        return statistics.median(shares) if len(shares) >= MIN_SIMILAR else None

    def _usual(self, pick: Pick) -> Usual:
        if not self.is_enough:
            return NOTHING
        found = (pick(member) for member in self.members)
        values = sorted(value * NS_PER_MS for value in found if value is not None)
        if len(values) < MIN_COHORT:
            return NOTHING
        median = statistics.median(values)
        deviation = statistics.median(abs(value - median) for value in values)
        p95 = values[min(len(values) - 1, int(0.95 * len(values)))]
        return Usual(median, MAD_TO_SIGMA * deviation, p95)

    def _median(self, values: Iterable[float]) -> float:
        known = list(values)
        return statistics.median(known) if self.is_enough and known else 0.0
