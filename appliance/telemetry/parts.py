"""The parts of the hub, wired together."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from appliance.supervisor.admin.schemas import AdapterRow, EngineRow, GatewayRow, Operation
from appliance.telemetry import names
from appliance.telemetry.accounts import Accounts
from appliance.telemetry.engine_levels import EngineLevels, gateway_levels
from appliance.telemetry.hop_join import HopJoin
from appliance.telemetry.journal import Journal
from appliance.telemetry.ledger import Ledger, Totals
from appliance.telemetry.live_requests import LiveRequests
from appliance.telemetry.recent import Recent
from appliance.telemetry.sampling import Sampler
from appliance.telemetry.span_data import SpanData
from appliance.telemetry.trace_assembly import TraceAssembly
from appliance.telemetry.trace_store import TraceStore
from appliance.telemetry.wall_clock import WallClock
from engine.clock import now_ns

if TYPE_CHECKING:
    from appliance.telemetry.otel_export import SpanExport

SUPERVISOR = "supervisor"


@dataclass(frozen=True, slots=True, kw_only=True)
class HubConfig:
    """Where the hub keeps and sends things."""

    trace_db_path: Path
    trace_store_bytes: int = 256 << 20
    trace_store_hours: float = 24
    otlp_endpoint: str | None = None
    """Base URL of a collector; None: no export."""
    trace_ratio: float = 1.0
    version: str = "0"
    instance: str = "local"


@dataclass(slots=True)
class Fleet:
    """How the hub asks for the rows of processes and operations."""

    engines: Callable[[], list[EngineRow]]
    gateways: Callable[[], list[GatewayRow]]
    operations: Callable[[], list[Operation]]
    adapters: Callable[[], list[AdapterRow]]


class Parts:
    """What the hub consists of. Everything is driven from one event loop."""

    def __init__(self, config: HubConfig) -> None:
        self.clock = WallClock()
        self.live = LiveRequests(self.clock)
        self.journal = Journal(self.clock)
        self.ledger = Ledger()
        self.levels = EngineLevels()
        self.recent = Recent(self.clock, now_ns())
        self.own = Accounts(SUPERVISOR, 0)
        self.store = TraceStore(
            config.trace_db_path,
            config.trace_store_bytes,
            config.trace_store_hours * 3600,
            self.clock,
        )
        self.export = _start_export(config, self.clock)
        sampler = Sampler(config.trace_ratio)
        self.assembly = TraceAssembly(
            self.store.add_spans, self._export, sampler, self.clock, self.live.is_live
        )
        self.join = HopJoin(lambda hop: self.assembly.hop(hop, now_ns()))
        self.join.lives(SUPERVISOR, 0)
        self.fleet = Fleet(list, list, list, list)

    def totals(self) -> Totals:
        """Return the accounts of the whole appliance as they are now."""
        at_ns = now_ns()
        self._count_own()
        own = self.own.snapshot(
            *self.levels.levels(self.fleet.engines(), at_ns),
            *gateway_levels(self.fleet.gateways()),
        )
        return self.ledger.totals(*self.levels.snapshots(), own)

    def _export(self, spans: Sequence[SpanData]) -> None:
        if self.export is not None:
            self.export.add(spans)

    def _count_own(self) -> None:
        own = self.own
        own.set(names.RECORDS_DROPPED, (SUPERVISOR, "hop_join"), self.join.evicted)
        own.set(names.RECORDS_DROPPED, (SUPERVISOR, "trace_assembly"), self.assembly.dropped)
        own.set(names.RECORDS_DROPPED, (SUPERVISOR, "trace_store"), self.store.dropped)
        if self.export is not None:
            own.set(names.RECORDS_DROPPED, (SUPERVISOR, "export"), self.export.dropped)
            own.set(names.SPANS_EXPORTED, (), self.export.exported)
            own.set(names.SPANS_FAILED, (), self.export.failed)


def _start_export(config: HubConfig, clock: WallClock) -> "SpanExport | None":
    if config.otlp_endpoint is None:
        return None
    # the SDK takes a while to import, and most appliances run without a collector
    from appliance.telemetry.otel_export import SpanExport, SpanTranslator  # noqa: PLC0415

    translator = SpanTranslator(clock, config.version, config.instance)
    return SpanExport(config.otlp_endpoint, translator)
