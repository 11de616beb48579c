"""What supervisor and gateways say to each other.

The supervisor binds a ROUTER, each gateway connects a DEALER whose identity is `name-epoch`. Frames
are those of the engine wire: type byte, header, body.
"""

import msgspec

from appliance.telemetry.records import (
    AccountsSnapshot,
    LiveTokens,
    RequestAccepted,
    RequestFirstToken,
    RequestRecord,
)
from engine.wire.hops import HopRecord
from engine.wire.messages import Body, EngineReady


class EngineRoute(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """One engine as a gateway needs to know it."""

    engine_id: str
    epoch: int
    """The current one; the gateway fences others."""
    state: str
    """A state of `appliance.supervisor.lifecycle`."""
    phase: str
    done: int
    total: int
    reason: str | None
    model: str
    """Primary served name."""
    served_names: tuple[str, ...]
    model_path: str
    ready: EngineReady | None
    sleep_level: int
    retry_after_s: float
    """Honest guess of when it may be worth asking again."""
    adapters: tuple[str, ...] = ()
    """LoRA adapters that requests to it may name now."""


class AdapterRoute(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """A LoRA adapter that the fleet shall serve: its name is the name of a model."""

    name: str
    model: str
    """Served name of the model that it changes; the engines of that model have it, or will."""
    content_hash: str
    failed_on: tuple[str, ...] = ()
    """Engines that cannot load it; waiting for them is in vain."""


class KeyRecord(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """A key as gateways see it: never the secret."""

    key_id: str
    name: str
    sha256: str
    """Hex digest of the whole key."""
    scope: str
    """`inference`, `viewer`, `operator`, `admin`."""
    expires_at: float | None = None
    """Unix seconds."""
    allows_content: bool = False
    """Whether prompts and outputs of its requests may be recorded while that is switched on."""


class Limits(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """Admission limits of one gateway (the supervisor has divided them by their number)."""

    max_queued: int
    """Accepted requests that have no first token yet, all keys."""
    requests_per_minute: float
    """Per key."""
    tokens_per_minute: float
    """Per key: prompt tokens plus `max_tokens`, refunded by actual use."""
    hold_s: float
    """Longest wait for an engine that starts or wakes."""


class SloTargets(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """What the operator promised; gateways count each request as kept or broken."""

    ttft_s: float
    tpot_s: float


class Recording(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """What a gateway records of requests; counts go on whatever stands here."""

    enabled: bool = True
    """Hops and request records."""
    content: bool = False
    """Prompts and outputs too, of requests whose key allows it."""


class FleetState(Body, frozen=True):
    """The whole state a gateway works from; a newer sequence number replaces it all."""

    sequence: int
    engines: tuple[EngineRoute, ...]
    keys: tuple[KeyRecord, ...]
    limits: Limits
    on_asleep: str
    """`wake` or `reject`."""
    draining: bool
    auth_required: bool
    adapters: tuple[AdapterRoute, ...] = ()
    recording: Recording = Recording()
    slo: SloTargets | None = None


class AbortHeld(Body, frozen=True):
    """End a request wherever it is; answered by `AbortResult`."""

    call_id: str
    request_id: str
    reason: str


class Shutdown(Body, frozen=True):
    """Finish what runs until the deadline, then send error frames and exit."""

    drain_s: float


class GatewayHello(Body, frozen=True):
    """First message of a gateway."""

    name: str
    index: int
    epoch: int
    pid: int


class StateAck(Body, frozen=True):
    """The gateway works from this state now."""

    sequence: int


class WakeEngine(Body, frozen=True):
    """A request waits for this engine, which sleeps."""

    engine_id: str
    request_id: str


class AbortResult(Body, frozen=True):
    """Whether the gateway held the request, and how many tokens it had."""

    call_id: str
    found: bool
    completion_tokens: int


class GatewayRecords(Body, frozen=True):
    """Records since the last message; bounded, drops are counted."""

    accepted: tuple[RequestAccepted, ...]
    first_tokens: tuple[RequestFirstToken, ...]
    finished: tuple[RequestRecord, ...]
    hops: tuple[HopRecord, ...]
    dropped: int
    """Cumulative."""


class GatewayAccounts(Body, frozen=True):
    """All accounts of the gateway and the progress of its live requests."""

    snapshot: AccountsSnapshot
    live: tuple[LiveTokens, ...]


class GatewayStopped(Body, frozen=True):
    """Last message before the gateway's process ends; its accounts are final."""

    name: str


ToGateway = FleetState | AbortHeld | Shutdown
FromGateway = (
    GatewayHello
    | StateAck
    | WakeEngine
    | AbortResult
    | GatewayRecords
    | GatewayAccounts
    | GatewayStopped
)

TYPE_BYTES: dict[type[Body], bytes] = {
    FleetState: b"\x40",
    AbortHeld: b"\x41",
    Shutdown: b"\x42",
    GatewayHello: b"\x50",
    StateAck: b"\x51",
    WakeEngine: b"\x52",
    AbortResult: b"\x53",
    GatewayRecords: b"\x54",
    GatewayAccounts: b"\x55",
    GatewayStopped: b"\x56",
}
