"""What is booked of requests that ran in a gateway when it died."""

from collections.abc import Iterable

from appliance.supervisor.admin.schemas import AdapterRow
from appliance.telemetry.ledger import OTHER, LostRequest
from appliance.telemetry.live_requests import LiveRequest

NS_PER_S = 1e9


def lost_requests(
    running: Iterable[LiveRequest], adapters: Iterable[AdapterRow], at_ns: int
) -> list[LostRequest]:
    """Return what the hub had heard of them; `adapters` tell the models behind their names."""
    bases = {adapter.name: adapter.model for adapter in adapters}
    return [_lost(live, bases, at_ns) for live in running]


def _lost(live: LiveRequest, bases: dict[str, str], at_ns: int) -> LostRequest:
    accepted, first_ns = live.accepted, live.first_token_ns
    return LostRequest(
        model=accepted.model,
        base_model=bases.get(accepted.model, accepted.model),
        key=accepted.key_id or OTHER,
        ttft_s=None if first_ns is None else (first_ns - accepted.received_ns) / NS_PER_S,
        duration_s=(at_ns - accepted.received_ns) / NS_PER_S,
        prompt_tokens=accepted.prompt_tokens,
        completion_tokens=live.tokens,
    )
