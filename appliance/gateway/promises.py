"""Judges each request by the promises: was it served, was its first token quick, were the rest."""

from typing import Final, NamedTuple

from appliance.control_link.messages import SloTargets
from appliance.gateway.journey import Journey
from appliance.telemetry.records import Outcome
from appliance.telemetry.request_times import first_token_ns, per_token_ns
from engine.clock import now_ns

NS_PER_S: Final = 1e9
SERVER_ERROR: Final = 500
"""Refusals from this status on are ours: no capacity, no engine. Bad input, a missing key and a
key's own rate limit are the client's."""


class Verdict(NamedTuple):
    """Whether each promise was kept; None: not judged."""

    availability: bool | None = None
    ttft: bool | None = None
    tpot: bool | None = None


def ttft_ns(journey: Journey) -> int | None:
    """Return the time to the first token; None when the gateway got none."""
    if journey.first_token_ns is None:
        return None
    is_stream = journey.parameters is not None and journey.parameters.stream
    at_ns = first_token_ns(journey.choices, journey.first_frame_ns, is_stream=is_stream)
    return (at_ns or journey.first_token_ns) - journey.context.received_ns


def tpot_ns(journey: Journey) -> float | None:
    """Return the mean time per output token of a finished request."""
    first_ns, last_ns = ttft_ns(journey), journey.last_token_ns
    if journey.outcome is not Outcome.FINISHED or first_ns is None or last_ns is None:
        return None
    return per_token_ns(journey.choices, journey.context.received_ns + first_ns, last_ns)


def judge(journey: Journey, targets: SloTargets | None) -> Verdict:
    """Judge an ended request. Bad input and requests without a key are not judged."""
    outcome, error = journey.outcome, journey.context.error
    if outcome is Outcome.REJECTED:
        is_ours = error is None or error.status >= SERVER_ERROR
        return Verdict(availability=False if is_ours else None)
    served = outcome is not Outcome.FAILED
    if targets is None:
        return Verdict(served)
    per_token = tpot_ns(journey)
    return Verdict(
        availability=served,
        ttft=_was_quick(journey, targets.ttft_s),
        tpot=None if per_token is None else per_token <= targets.tpot_s * NS_PER_S,
    )


def _was_quick(journey: Journey, target_s: float) -> bool | None:
    """Judge the first token. One that had not come in time is late though its client gave up."""
    first_ns, target_ns = ttft_ns(journey), target_s * NS_PER_S
    if first_ns is not None:
        return first_ns <= target_ns
    waited_ns = (journey.context.ended_ns or now_ns()) - journey.context.received_ns
    gave_up = journey.outcome is Outcome.ABORTED and waited_ns > target_ns
    return False if gave_up else None
