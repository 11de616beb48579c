"""The accounts of requests: received = rejected + accepted, accepted = ended + running, always.

Both sides of each equation move in the same turn of the loop, so every snapshot closes.
"""

from itertools import pairwise

from appliance.gateway.journey import Journey
from appliance.telemetry import names
from appliance.telemetry.accounts import Accounts
from appliance.telemetry.records import Outcome
from engine.wire.messages import Timeline
from engine.wire.sockets import MessageCounts

NS_PER_S = 1e9
UNKNOWN_MODEL = "other"


class Ledger:
    """Books requests into the accounts of one gateway."""

    def __init__(self, accounts: Accounts, process: str) -> None:
        self.version = 0
        """Grows with every booking."""
        self._accounts = accounts
        self._process = process

    def accept(self, journey: Journey) -> None:
        """The request passed validation and admission; it runs until `close`."""
        self.version += 1
        journey.context.was_accepted = True
        self._accounts.inc(names.REQUESTS_RECEIVED, (journey.route,))
        self._accounts.inc(names.REQUESTS_ACCEPTED, (journey.route,))
        self._accounts.inc(names.REQUESTS_RUNNING, (journey.route,))

    def close(self, journey: Journey) -> None:
        """The request ended, accepted or not; called exactly once."""
        self.version += 1
        if not journey.context.was_accepted:
            error = journey.context.error
            code = error.code if error else "internal_error"
            self._accounts.inc(names.REQUESTS_RECEIVED, (journey.route,))
            self._accounts.inc(names.REQUESTS_REJECTED, (journey.route, code))
            return
        self._accounts.inc(names.REQUESTS_RUNNING, (journey.route,), -1)
        self._accounts.inc(names.REQUESTS_ENDED, (journey.route, journey.outcome.value))
        self._book_tokens_and_times(journey)

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

    def _book_tokens_and_times(self, journey: Journey) -> None:
        model = journey.base_model or journey.model or UNKNOWN_MODEL
        accounts, received_ns = self._accounts, journey.context.received_ns
        accounts.inc(names.PROMPT_TOKENS, (model,), journey.prompt_tokens)
        accounts.inc(names.COMPLETION_TOKENS, (model,), journey.completion_tokens)
        ended_ns = journey.context.ended_ns or received_ns
        duration_s = (ended_ns - received_ns) / NS_PER_S
        accounts.observe(names.E2E, duration_s, (model, journey.outcome.value))
        if journey.first_token_ns is not None:
            ttft_s = (journey.first_token_ns - received_ns) / NS_PER_S
            accounts.observe(names.TTFT, ttft_s, (model,))
            self._book_token_time(journey, model, duration_s - ttft_s)
        for choice in journey.choices:
            if choice.timeline is not None:
                self._book_stages(choice.timeline, model)

    def _book_token_time(self, journey: Journey, model: str, generating_s: float) -> None:
        longest = max(choice.completion_tokens for choice in journey.choices)
        if journey.outcome is Outcome.FINISHED and longest > 1:
            self._accounts.observe(names.TPOT, generating_s / (longest - 1), (model,))

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
