"""The accounts of requests: received = rejected + accepted, accepted = ended + running, always.

Both sides of each equation move in the same turn of the loop, so every snapshot closes; and what
ended is booked by key and by model in that turn too, so that these sums are the same.
"""

from itertools import pairwise
from typing import Final

from appliance.control_link.messages import SloTargets
from appliance.gateway.journey import GENERATING, Journey
from appliance.gateway.phase_times import phase_times
from appliance.gateway.promises import Verdict, judge, tpot_ns, ttft_ns
from appliance.gateway.token_gaps import TokenGaps
from appliance.telemetry import names
from appliance.telemetry.accounts import Accounts
from appliance.telemetry.records import Outcome
from engine.wire.messages import Timeline
from engine.wire.sockets import MessageCounts

NS_PER_S = 1e9
OTHER = "other"
"""A model that is not ours, or one key too many."""
LOCAL = "local"
ANONYMOUS = "anonymous"
MAX_KEYS: Final = 100
"""Keys that have accounts of their own; the others share one."""
MAX_MODELS: Final = 200
"""Served names and adapters, likewise: adapters may come and go by the thousand."""
PROMISES: Final = ("availability", "ttft", "tpot")


class Ledger:
    """Books requests into the accounts of one gateway."""

    def __init__(self, accounts: Accounts, process: str) -> None:
        self.version = 0
        """Grows with every booking."""
        self.targets: SloTargets | None = None
        """What is promised; None: the supervisor has not said yet."""
        self._accounts = accounts
        self._process = process
        self._keys: set[str] = set()
        self._models: set[str] = set()
        self._begin_at_zero()

    def accept(self, journey: Journey) -> None:
        """The request passed validation and admission; it runs until `close`."""
        self.version += 1
        journey.context.was_accepted = True
        self._accounts.inc(names.REQUESTS_RECEIVED, (journey.route,))
        self._accounts.inc(names.REQUESTS_ACCEPTED, (journey.route,))
        self._accounts.inc(names.REQUESTS_RUNNING, (journey.route,))

    def close(self, journey: Journey) -> Verdict:
        """The request ended, accepted or not; called exactly once. Returns how it was judged."""
        self.version += 1
        self._book_end(journey)
        self._book_shares(journey)
        if journey.context.was_accepted:
            self._book_tokens(journey)
            self._book_times(journey)
        verdict = judge(journey, self.targets)
        for promise, kept in zip(PROMISES, verdict, strict=True):
            if kept is not None:
                self._accounts.inc(names.SLO_EVENTS, (promise, "good" if kept else "bad"))
        return verdict

    def gaps(self, journey: Journey) -> TokenGaps:
        """Return where the times between the tokens of one choice are noted."""
        return TokenGaps(self._accounts.histogram(names.ITL, (_base_model(journey),)))

    def requeued(self) -> None:
        """A choice was sent again because its engine died."""
        self._accounts.inc(names.REQUESTS_REQUEUED)

    def ignored_parameters(self) -> None:
        """A request had unknown fields."""
        self._accounts.inc(names.IGNORED_PARAMETERS)

    def answered(self, route: str, status: int) -> None:
        """An HTTP answer ended, on any route."""
        self.version += 1
        self._accounts.inc(names.HTTP_RESPONSES, (route, str(status)))

    def messages(self, *counts: MessageCounts, records_dropped: int) -> None:
        """Copy what the sockets have counted."""
        for kept in counts:
            for message, count in kept.sent.items():
                self._accounts.set(names.MESSAGES_SENT, (self._process, message), count)
            for message, count in kept.received.items():
                self._accounts.set(names.MESSAGES_RECEIVED, (self._process, message), count)
        process = (self._process,)
        fenced = sum(kept.fenced for kept in counts)
        undecodable = sum(kept.undecodable for kept in counts)
        self._accounts.set(names.MESSAGES_FENCED, process, fenced)
        self._accounts.set(names.MESSAGES_UNDECODABLE, process, undecodable)
        self._accounts.set(names.RECORDS_DROPPED, (self._process, "gateway"), records_dropped)

    # ------------------------------------------------------------ bookings

    def _begin_at_zero(self) -> None:
        """Show the series that alerts are made of before anything happens: a rate needs a start."""
        for route in GENERATING:
            for metric in (
                names.REQUESTS_RECEIVED,
                names.REQUESTS_ACCEPTED,
                names.REQUESTS_RUNNING,
            ):
                self._accounts.set(metric, (route,), 0)
            for outcome in Outcome:
                if outcome is not Outcome.REJECTED:
                    self._accounts.set(names.REQUESTS_ENDED, (route, outcome.value), 0)
        for promise in PROMISES:
            for verdict in ("good", "bad"):
                self._accounts.set(names.SLO_EVENTS, (promise, verdict), 0)

    def _book_end(self, journey: Journey) -> None:
        accounts, route = self._accounts, journey.route
        if journey.context.was_accepted:
            accounts.inc(names.REQUESTS_RUNNING, (route,), -1)
            accounts.inc(names.REQUESTS_ENDED, (route, journey.outcome.value))
            return
        error = journey.context.error
        accounts.inc(names.REQUESTS_RECEIVED, (route,))
        accounts.inc(names.REQUESTS_REJECTED, (route, error.code if error else "internal_error"))

    def _book_shares(self, journey: Journey) -> None:
        """Book the end by key and by model: all ends, so that both sum up to the totals."""
        model = _closed(self._models, journey.model or OTHER, MAX_MODELS)
        key, outcome = self._key(journey), journey.outcome.value
        self._accounts.inc(names.KEY_REQUESTS, (key, outcome))
        self._accounts.inc(names.MODEL_REQUESTS, (model, outcome))

    def _book_tokens(self, journey: Journey) -> None:
        accounts, key = self._accounts, self._key(journey)
        model = (_base_model(journey),)
        accounts.observe(names.REQUEST_PROMPT_TOKENS, journey.prompt_tokens, model)
        accounts.observe(names.REQUEST_COMPLETION_TOKENS, journey.completion_tokens, model)
        for metric, kind, tokens in (
            (names.PROMPT_TOKENS, "prompt", journey.prompt_tokens),
            (names.CACHED_PROMPT_TOKENS, "cached", journey.cached_tokens),
            (names.COMPLETION_TOKENS, "completion", journey.completion_tokens),
        ):
            accounts.inc(metric, model, tokens)
            accounts.inc(names.KEY_TOKENS, (key, kind), tokens)

    def _book_times(self, journey: Journey) -> None:
        accounts, model = self._accounts, _base_model(journey)
        received_ns = journey.context.received_ns
        duration_ns = (journey.context.ended_ns or received_ns) - received_ns
        accounts.observe(names.E2E, duration_ns / NS_PER_S, (model, journey.outcome.value))
        for metric, value_ns in ((names.TTFT, ttft_ns(journey)), (names.TPOT, tpot_ns(journey))):
            if value_ns is not None:
                accounts.observe(metric, value_ns / NS_PER_S, (model,))
        for phase, took_ns in phase_times(journey):
            accounts.observe(names.PHASE_SECONDS, took_ns / NS_PER_S, (phase,))
        accounts.inc(names.SEND_BLOCKED, (), journey.send_blocked_ns / NS_PER_S)
        for choice in journey.choices:
            if choice.timeline is not None:
                self._book_stages(choice.timeline, model)

    def _book_stages(self, timeline: Timeline, model: str) -> None:
        stamps = (
            timeline.received_ns,
            timeline.scheduled_ns,
            timeline.first_token_ns,
            timeline.last_token_ns,
        )
        stages = (names.QUEUE, names.PREFILL, names.DECODE)
        for stage, (start_ns, end_ns) in zip(stages, pairwise(stamps), strict=True):
            if start_ns is not None and end_ns is not None:
                self._accounts.observe(stage, (end_ns - start_ns) / NS_PER_S, (model,))

    def _key(self, journey: Journey) -> str:
        """Return the label of who asked: a key's id while there are few, never a secret."""
        context = journey.context
        if context.key is None:
            return LOCAL if context.is_local else ANONYMOUS
        return _closed(self._keys, context.key.key_id, MAX_KEYS)


def _closed(seen: set[str], value: str, limit: int) -> str:
    """Return the value while there are few, else `other`."""
    if value not in seen and len(seen) < limit:
        seen.add(value)
    return value if value in seen else OTHER


def _base_model(journey: Journey) -> str:
    return journey.base_model or journey.model or OTHER
