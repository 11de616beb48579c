"""What all requests of one gateway share."""

import asyncio
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from appliance.control_link.messages import FleetState
from appliance.gateway.admission import Admission
from appliance.gateway.fleet import DEAD, Fleet
from appliance.gateway.journey import Journey
from appliance.gateway.ledger import Ledger
from appliance.gateway.limits import CLOSE
from appliance.gateway.model_texts import TextRegistry
from appliance.gateway.openai.errors import ApiError
from appliance.gateway.records import RecordBuffer
from appliance.gateway.supervision import Interrupt
from appliance.telemetry.loop_lag import LoopLag
from engine.client.async_mp import AsyncMPClient

DRAIN_RETRY_AFTER_S = 5.0


@dataclass(frozen=True, slots=True)
class Timing:
    """Deadlines of the answering side, seconds."""

    hold_status_s: float = 2.0
    """The HTTP status stays open this long for a first token; then a stream begins."""
    comment_s: float = 5.0
    """A stream is never silent for longer: proxies cut silent connections."""
    stall_s: float = 30.0
    """A client that takes nothing for this long is cut off."""
    settle_s: float = 5.0
    """Wait for an engine's last word on a request that was aborted."""


@dataclass(slots=True)
class LiveRequest:
    """An accepted request, or one about to be, as others may reach it."""

    journey: Journey
    interrupt: Interrupt


@dataclass(slots=True)
class DataPlane:
    """The services and the shared state of one gateway."""

    client: AsyncMPClient
    ledger: Ledger
    records: RecordBuffer
    wake_engine: Callable[[str, str], None]
    """Called with (engine id, request id): the supervisor decides."""
    strict_parameters: bool = False
    cors_origins: tuple[str, ...] = ()
    timing: Timing = field(default_factory=Timing)
    fleet: Fleet = field(default_factory=Fleet)
    texts: TextRegistry = field(default_factory=TextRegistry)
    admission: Admission = field(default_factory=lambda: Admission(time.monotonic))
    live: dict[str, LiveRequest] = field(default_factory=dict)
    """By the 24 hex digits of the id."""
    is_stopping: bool = False
    """This process is about to end."""
    lag: LoopLag = field(default_factory=LoopLag)
    """How late the timers of this gateway's loop fire."""
    idle: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while no request is live."""

    def __post_init__(self) -> None:
        self.idle.set()

    @property
    def is_draining(self) -> bool:
        """Whether new requests are refused because this gateway or the appliance stops."""
        state = self.fleet.state
        return self.is_stopping or (state is not None and state.draining)

    def enter(self, hex_id: str, live: LiveRequest) -> None:
        """A request begins."""
        self.live[hex_id] = live
        self.idle.clear()

    def leave(self, hex_id: str) -> None:
        """A request has ended and given everything back."""
        self.live.pop(hex_id, None)
        if not self.live:
            self.idle.set()

    def apply(self, state: FleetState) -> None:
        """Work from this fleet state: fence epochs, fail what died, load what is new."""
        for route in state.engines:
            if route.state in DEAD:
                reason = route.reason or f"the engine is in state {route.state}"
                self.client.fail_engine(route.engine_id, route.epoch, reason)
            elif self.epoch_of(route.engine_id) != route.epoch:
                self.client.expect(route.engine_id, route.epoch)
            self.texts.ensure(route.model_path)
        limits = state.limits
        self.admission.set_limits(
            limits.max_queued, limits.requests_per_minute, limits.tokens_per_minute
        )
        self.ledger.targets = state.slo
        self.records.enabled = self.client.records_hops = state.recording.enabled
        self.records.keeps_content = state.recording.content
        self.fleet.apply(state)

    def epoch_of(self, engine_id: str) -> int | None:
        """The epoch that the last state gave an engine."""
        state = self.fleet.state
        routes = state.engines if state else ()
        return next((r.epoch for r in routes if r.engine_id == engine_id), None)

    def refuse_when_draining(self) -> None:
        """Raise ApiError when this gateway is about to stop."""
        if self.is_draining:
            raise ApiError(
                "server_overloaded",
                "The server is shutting down.",
                retry_after_s=DRAIN_RETRY_AFTER_S,
                headers=CLOSE,
            )

    @property
    def hold_s(self) -> float:
        """Longest wait for an engine that starts or wakes."""
        return self.fleet.state.limits.hold_s if self.fleet.state else math.inf

    def end_all(self, error: ApiError) -> None:
        """End every request that is still here."""
        for live in list(self.live.values()):
            live.interrupt.end(error)
