"""What is measured: the load of each scenario, and the figures that count of it."""

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from appliance.cli.bench_figures import Outcome, figures_of, quantile_ms
from appliance.cli.bench_load import Load
from comparison.subjects import Subject

PROMPT_TOKENS, OUTPUT_TOKENS = 101, 128
MAX_REQUESTS, MIN_REQUESTS = 32, 3
TTFT_REQUESTS, TTFT_TOKENS = 6, 8
STAGGERED_STREAMS, STAGGER_S = 32, 8.0
PREFILL_TOKENS, PREFILL_REQUESTS = (128, 512), 4
CONTEXT_TOKENS, CONTEXT_OUTPUT, CONTEXT_REQUESTS = (128, 4096), 64, 2
MAX_RUN_S = 90.0
SCENARIOS = ("throughput", "ttft", "prefill", "staggered", "context")


@dataclass(frozen=True, slots=True)
class Cell:
    """One thing that is measured of several subjects, in turns."""

    scenario: str
    size: int
    """Streams; tokens of the prompt for `prefill` and `context`."""

    @property
    def streams(self) -> int:
        """How many requests run at once."""
        return self.size if self.scenario in ("throughput", "staggered", "ttft") else 1

    @property
    def load(self) -> Load:
        """What is sent."""
        match self.scenario:
            case "ttft":
                return _load(1, TTFT_REQUESTS, PROMPT_TOKENS, TTFT_TOKENS)
            case "prefill":
                return _load(1, PREFILL_REQUESTS, self.size, 1)
            case "context":
                return _load(1, CONTEXT_REQUESTS, self.size, CONTEXT_OUTPUT)
            case "staggered":
                return Load(
                    slots=self.size,
                    stagger_s=STAGGER_S,
                    prompt_words=PROMPT_TOKENS,
                    output_tokens=OUTPUT_TOKENS,
                )
            case _:
                requests = max(MIN_REQUESTS, min(2 * self.size, max(MAX_REQUESTS, self.size)))
                return _load(self.size, requests, PROMPT_TOKENS, OUTPUT_TOKENS)

    def values(self, outcome: Outcome) -> dict[str, float]:
        """Return the figures of one run."""
        figures = asdict(figures_of(self.size, outcome, self.load.stagger_s))
        values = {name: float(figures[name]) for name in _FIGURES}
        if self.scenario == "prefill":
            values["prefill_tok_s"] = _prefill_tok_s(outcome)
        if rates := _decode_tok_s(outcome):
            values["decode_tok_s"] = statistics.median(rates)
        return values


_FIGURES = (
    *("output_tok_s", "total_tok_s", "ttft_ms_p50", "ttft_ms_p95", "itl_ms_p50", "itl_ms_p99"),
    *("prompt_tokens", "wall_s"),
)


def _load(slots: int, requests: int, prompt_tokens: int, output_tokens: int) -> Load:
    return Load(
        slots=slots,
        requests=requests,
        prompt_words=prompt_tokens,
        output_tokens=output_tokens,
        max_seconds=MAX_RUN_S,
    )


def _prefill_tok_s(outcome: Outcome) -> float:
    """Return the median rate: tokens of a prompt over the time to its first token."""
    times_s = [
        (sample.chunks_s[0] - sample.started_s) / sample.prompt_tokens for sample in outcome.samples
    ]
    return 1e3 / quantile_ms(times_s, 0.5)


def _decode_tok_s(outcome: Outcome) -> list[float]:
    """Return the rate of each answer after its first chunk, whatever the chunks hold."""
    return [
        (len(times_s) - 1) * sample.tokens_per_chunk / (times_s[-1] - times_s[0])
        for sample in outcome.samples
        if len(times_s := sample.chunks_s) > 1
    ]


def cells_of(scenarios: Sequence[str], streams: Sequence[int]) -> list[Cell]:
    """Return all that is measured, in order."""
    sizes = {
        "throughput": tuple(streams),
        "ttft": (1,),
        "prefill": PREFILL_TOKENS,
        "staggered": (STAGGERED_STREAMS,),
        "context": CONTEXT_TOKENS,
    }
    return [Cell(name, size) for name in scenarios for size in sizes[name]]


def takes_part(subject: Subject, cell: Cell, *, everywhere: bool) -> bool:
    """Return whether a subject is measured in a cell.

    Args:
        subject: Who.
        cell: Where.
        everywhere: Throughput with all numbers of streams, not only those where it can be best.
    """
    if cell.scenario not in subject.scenarios:
        return False
    is_limited = cell.scenario == "throughput" and subject.streams and not everywhere
    return cell.size in subject.streams if is_limited else True
