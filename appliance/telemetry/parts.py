"""The parts of the hub, wired together."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from appliance.config.otlp import OtlpProtocol, otlp_options
from appliance.config.settings import SloSettings
from appliance.supervisor.admin.schemas import AdapterRow, EngineRow, GatewayRow, Operation
from appliance.telemetry import names
from appliance.telemetry.accounts import Accounts
from appliance.telemetry.engine_levels import EngineLevels, gateway_levels
from appliance.telemetry.hop_join import HopJoin
from appliance.telemetry.journal import Journal
from appliance.telemetry.ledger import Ledger, Totals
from appliance.telemetry.live_requests import LiveRequests
from appliance.telemetry.live_settings import LiveTelemetry
from appliance.telemetry.losses import Losses
from appliance.telemetry.own_figures import OwnFigures, instance_levels
from appliance.telemetry.recent import Recent
from appliance.telemetry.recoveries import Recoveries
from appliance.telemetry.sampling import Sampler
from appliance.telemetry.slo import SloBook
from appliance.telemetry.span_data import SpanData
from appliance.telemetry.start_spans import Starts
from appliance.telemetry.trace_assembly import TraceAssembly
from appliance.telemetry.trace_facts import Loss
from appliance.telemetry.trace_store import TraceStore
from appliance.telemetry.wall_clock import WallClock
from engine.clock import now_ns

if TYPE_CHECKING:
    from appliance.telemetry.export.span_export import SpanExport

SUPERVISOR = "supervisor"
SETTLE_NS = 1_000_000_000
"""Within that time engines and gateways record again once they are told to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HubConfig:
    """Where the hub keeps and sends things."""

    trace_db_path: Path
    trace_store_bytes: int = 256 << 20
    trace_store_hours: float = 24
    otlp_endpoint: str | None = None
    """Base URL of a collector; None: no export."""
    otlp_protocol: OtlpProtocol = "http/protobuf"
    trace_ratio: float = 1.0
    slowest_per_minute: int = 5
    content: bool = False
    """Whether prompts and outputs are recorded, of requests whose key allows it."""
    version: str = "0"
    instance: str = "local"
    slo: SloSettings = field(default_factory=lambda: SloSettings.model_validate({}))
    slo_db_path: Path | None = None
    """Where the minutes of the promises are kept; None: in memory alone."""


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
        began_ns = now_ns()
        self.journal = Journal(self.clock, self.clock.unix_ns(began_ns) // 1_000_000)
        self.ledger = Ledger()
        self.levels = EngineLevels()
        self.recent = Recent(self.clock, now_ns())
        self.own = Accounts(SUPERVISOR, 0)
        self.figures = OwnFigures(self.own, SUPERVISOR)
        self.constant = instance_levels(config.version, self.clock.unix_ns(now_ns()))
        self.slo = SloBook(config.slo, self.clock, config.slo_db_path)
        self.slo.open(now_ns())
        self.store = TraceStore(
            config.trace_db_path,
            config.trace_store_bytes,
            config.trace_store_hours * 3600,
            self.clock,
        )
        self.export = _start_export(config, self.clock)
        self.settings = LiveTelemetry(
            export=self.export is not None,
            trace_ratio=config.trace_ratio,
            slowest_per_minute=config.slowest_per_minute,
            content=config.content,
        )
        self._sampler = Sampler(self.settings)
        self.assembly = TraceAssembly(
            self.store, self._export, self._sampler, self.clock, self.live.is_live
        )
        self.assembly.set_exporting(self.settings.export)
        self.starts = Starts(self.assembly.emit)
        self.recoveries = Recoveries(self.assembly.emit)
        self._off_since_ns = began_ns
        self.losses = Losses(self.store.add_loss, began_ns)
        self.assembly.rpc.on_call = self._time_call
        self.join = HopJoin(lambda hop: self.assembly.hop(hop, now_ns()))
        self.join.lives(SUPERVISOR, 0)
        self.fleet = Fleet(list, list, list, list)

    def apply(self, settings: LiveTelemetry) -> None:
        """Work by these settings from now on."""
        self._mark_gap(self.settings.recording, settings.recording)
        self.settings = settings
        self._sampler.apply(settings)
        self.assembly.set_exporting(settings.export)
        if self.export is not None:
            self.export.set_enabled(settings.export)

    def _mark_gap(self, before: bool, after: bool) -> None:
        """What ran while nothing was recorded has no whole trace."""
        if before and not after:
            self._off_since_ns = now_ns()
        elif after and not before:
            gap = Loss(SUPERVISOR, "recording", self._off_since_ns, now_ns() + SETTLE_NS, 0)
            self.store.add_loss(gap)

    def watch_losses(self, at_ns: int) -> None:
        """Note what the stages of the hub lost since the last call."""
        if not self.settings.recording and at_ns - self._off_since_ns > SETTLE_NS:
            self.join.forget()
        for stage, dropped in self._lost().items():
            self.losses.heard(SUPERVISOR, stage, dropped, at_ns)

    def totals(self) -> Totals:
        """Return the accounts of the whole appliance as they are now."""
        at_ns = now_ns()
        self._count_own()
        own = self.own.snapshot(
            *self.levels.levels(self.fleet.engines(), at_ns, self.clock.offset_ns),
            *gateway_levels(self.fleet.gateways()),
            *self.slo.levels(),
            *self.constant,
        )
        totals = self.ledger.totals(*self.levels.snapshots(), own)
        self.slo.observe(totals.values.get(names.SLO_EVENTS.name, {}), at_ns)
        return totals

    def _export(self, spans: Sequence[SpanData]) -> None:
        if self.export is not None:
            self.export.add(spans)

    def _time_call(self, method: str, took_s: float) -> None:
        self.own.observe(names.RPC_DURATION, took_s, (method,))

    def _lost(self) -> dict[str, int]:
        """Return what the stages of the hub have lost of the local traces so far."""
        return {"hop_join": self.join.evicted, "trace_store": self.store.dropped}

    def _dropped(self) -> dict[str, int]:
        """Return what every stage of the hub has lost so far."""
        dropped = {
            **self._lost(),
            "trace_assembly": self.assembly.dropped,
            "step_gate": self.assembly.gate.dropped,
            "calls": self.assembly.rpc.dropped,
            "live_requests": self.live.dropped,
        }
        if self.export is not None:
            dropped["export"] = self.export.dropped
        return dropped

    def _count_own(self) -> None:
        own = self.own
        depths = {
            "join": len(self.join),
            "assembly": self.assembly.num_held + len(self.assembly.gate),
            "trace_store": self.store.depth,
        }
        own.set(names.TRACE_STORE_BYTES, (), self.store.used_bytes)
        for stage, dropped in self._dropped().items():
            own.set(names.RECORDS_DROPPED, (SUPERVISOR, stage), dropped)
        if self.export is not None:
            depths["export"] = self.export.queued
            own.set(names.SPANS_EXPORTED, (), self.export.exported)
            own.set(names.SPANS_FAILED, (), self.export.failed)
            own.set(names.EXPORT_FAILING, (), float(self.export.failing))
        self.figures.book(depths)


def _start_export(config: HubConfig, clock: WallClock) -> "SpanExport | None":
    if config.otlp_endpoint is None:
        return None
    options = otlp_options(config.otlp_endpoint, config.otlp_protocol, os.environ)
    # the SDK takes a while to import, and most appliances run without a collector
    from appliance.telemetry.export.start import start_export  # noqa: PLC0415

    return start_export(options, clock, config.version, config.instance)
