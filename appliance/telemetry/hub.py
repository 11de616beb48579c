"""The telemetry hub: turns what processes report into traces, metrics, live rows and events.

It is fed from the supervisor's event loop and never blocks it: files, the collector and the
rendering of metrics have threads of their own.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping

from appliance.control_link.messages import GatewayAccounts, GatewayRecords
from appliance.supervisor.admin.schemas import (
    AdapterRow,
    EngineRow,
    GatewayRow,
    Operation,
    RequestRow,
)
from appliance.telemetry import names
from appliance.telemetry.cut_short import cut_short
from appliance.telemetry.headline import headline
from appliance.telemetry.live_control import LiveControl
from appliance.telemetry.lost_requests import lost_requests
from appliance.telemetry.parts import SUPERVISOR, Fleet, HubConfig
from appliance.telemetry.records import RequestRecord
from appliance.telemetry.rpc_spans import ENDED
from appliance.telemetry.unfailing import unfailing
from engine.clock import now_ns
from engine.shared_ticks import until_tick
from engine.wire.header import TraceContext
from engine.wire.hops import HopReceived, HopRecord
from engine.wire.messages import (
    EngineProgress,
    EngineReady,
    EngineRecords,
    EngineStats,
    FromEngine,
    Heartbeat,
)

__all__ = ["Hub", "HubConfig"]

logger = logging.getLogger(__name__)

TICK_S = 0.1
TICKS_PER_S = 10
CLOSE_S = 1.5
"""Longest wait for a collector at the end; the ceiling of the shutdown leaves no more."""
LOST_NS = 5_000_000_000
NS_PER_S = 1e9


class Hub(LiveControl):
    """Takes reports in; what it shows is in `Views`, its switches are in `LiveControl`."""

    def __init__(self, config: HubConfig) -> None:
        super().__init__(config)
        self._export_failing = self._store_failing = self._closed = False
        self._published: dict[str, EngineRow] = {}

    # ------------------------------------------------------------ life

    def set_fleet(
        self,
        engines: Callable[[], list[EngineRow]],
        gateways: Callable[[], list[GatewayRow]],
        operations: Callable[[], list[Operation]],
        adapters: Callable[[], list[AdapterRow]] = list,
    ) -> None:
        """Say where the rows of engines, gateways, operations and adapters come from."""
        self.parts.fleet = Fleet(engines, gateways, operations, adapters)

    async def run(self) -> None:
        """Do what is due, until cancelled."""
        self.parts.figures.lag.start()
        tick = 0
        while True:
            await asyncio.sleep(until_tick(TICK_S))
            tick += 1
            self._tick()
            if tick % TICKS_PER_S == 0:
                self._each_second()

    async def close(self) -> None:
        """Write and send what is left; the event stream ends. Idempotent."""
        if self._closed:
            return
        self._closed = True
        at_ns = now_ns()
        self.stream.close()
        if self.parts.settings.recording:
            self.parts.join.finish(at_ns)
        self.parts.assembly.finish(at_ns)
        self.parts.figures.close()
        await asyncio.to_thread(self.parts.slo.close)
        await self.parts.store.close()
        if self.parts.export is not None:
            await asyncio.to_thread(self.parts.export.close, CLOSE_S)

    @unfailing
    def _tick(self) -> None:
        at_ns = now_ns()
        self.parts.join.expire(at_ns)
        self.parts.assembly.expire(at_ns)
        self.parts.watch_losses(at_ns)
        self.parts.store.flush(at_ns)
        self._watch_export()
        self._watch_store()

    @unfailing
    def _each_second(self) -> None:
        for row in self.parts.fleet.engines():
            self._publish_row(row)
        for row in self.parts.live.take_changed(now_ns()):
            self._publish_request(row)
        self.stream.publish("stats", self.stats().model_dump_json())
        self.parts.recent.examples.settle(self.parts.store.dropped)
        self._watch_promises()

    def _watch_promises(self) -> None:
        """Say when a promise is in danger, and when it is kept again."""
        for change in self.parts.slo.take_changes():
            self.journal(f"slo.{change.state}", change.level, change.name, change.text)

    def _watch_export(self) -> None:
        """Say once that the collector refuses spans, and once that it takes them again."""
        export = self.parts.export
        if export is None or not export.is_enabled or export.failing == self._export_failing:
            return
        self._export_failing = export.failing
        if self._export_failing:
            text = f"no spans to {export.endpoint}: {export.last_error}"
            self.journal("export.failing", "warning", SUPERVISOR, text)
        else:
            self.journal("export.works", "info", SUPERVISOR, f"spans go to {export.endpoint}")

    def _watch_store(self) -> None:
        """Say once that the trace store refuses facts, and once that it takes them again."""
        reason = self.parts.store.failing
        if (reason is not None) == self._store_failing:
            return
        self._store_failing = reason is not None
        if reason is not None:
            text = f"the trace store refuses records: {reason}"
            self.journal("trace_store.failing", "warning", SUPERVISOR, text)
        else:
            self.journal("trace_store.works", "info", SUPERVISOR, "the trace store works again")

    # ------------------------------------------------------------ engines

    @unfailing
    def engine_message(self, engine_id: str, epoch: int, message: FromEngine) -> None:
        """Take a message of an engine's current epoch; kinds without telemetry are ignored."""
        parts, at_ns = self.parts, now_ns()
        parts.join.lives(engine_id, at_ns)
        match message:
            case Heartbeat():
                parts.levels.heartbeat(engine_id, epoch, at_ns)
            case EngineStats():
                parts.levels.stats(engine_id, epoch, message, at_ns)
                parts.recent.prompt_tokens.set(at_ns, parts.levels.prompt_tokens)
                parts.recent.generation_tokens.set(at_ns, parts.levels.generation_tokens)
            case EngineRecords():
                parts.losses.heard(engine_id, "engine", message.dropped, at_ns)
                for hop in message.hops:
                    self._hop(hop, at_ns)
                for step in message.steps:
                    parts.assembly.step(step, at_ns)
            case EngineProgress():
                parts.starts.progress(engine_id, epoch, message.phase, at_ns)
            case EngineReady():
                parts.levels.ready(engine_id, epoch, message)
                parts.starts.ready(engine_id, epoch, message)
            case _:
                pass

    @unfailing
    def engine_spawned(self, engine_id: str, epoch: int, at_ns: int, context: TraceContext) -> None:
        """An engine's process is about to be spawned; `context` is that of its start's trace."""
        self.parts.starts.spawned(engine_id, epoch, at_ns, context)

    @unfailing
    def engine_died(self, engine_id: str, epoch: int, reason: str) -> None:
        """An engine's epoch is over: its counts stay, what was sent to it is lost."""
        at_ns = now_ns()
        self.parts.join.died(engine_id, at_ns)
        self.parts.assembly.rpc.died(engine_id, at_ns)
        self.parts.starts.died(engine_id, epoch, at_ns, reason)
        self.parts.losses.died(engine_id, "engine", at_ns)
        snapshot = self.parts.levels.died(engine_id, epoch)
        if snapshot is not None:
            self.parts.ledger.enter(snapshot)
            self.parts.ledger.died(engine_id, snapshot.epoch)
        logger.debug("the accounts of %s (epoch %d) are closed: %s", engine_id, epoch, reason)

    # ------------------------------------------------------------ gateways

    @unfailing
    def gateway_records(self, message: GatewayRecords, name: str | None = None) -> None:
        """Take the records of the gateway `name`; None: whose losses nobody follows."""
        live, at_ns = self.parts.live, now_ns()
        if name is not None:
            self.parts.losses.heard(name, "gateway", message.dropped, at_ns)
        for accepted in message.accepted:
            self.parts.join.lives(accepted.gateway, at_ns)
            live.accept(accepted)
            self._publish_live(accepted.request_id)
        for first in message.first_tokens:
            live.first_token(first)
            self._publish_live(first.request_id)
        for hop in message.hops:
            self._hop(hop, at_ns)
        for record in message.finished:
            self._end(record)

    @unfailing
    def gateway_accounts(self, message: GatewayAccounts) -> None:
        """Take a gateway's accounts and the progress of its requests."""
        snapshot = message.snapshot
        self.parts.join.lives(snapshot.process, now_ns())
        self.parts.ledger.enter(snapshot)
        for tokens in message.live:
            self.parts.live.progress(tokens)
        patience_ns = LOST_NS if self.parts.settings.recording else 0
        before_ns = snapshot.taken_ns - patience_ns
        for row in self.parts.live.forget_lost(snapshot.process, message.live, before_ns):
            self._publish_request(row)

    @unfailing
    def gateway_died(self, name: str, epoch: int) -> None:
        """A gateway's epoch is over: its counts stay, its open requests have failed."""
        at_ns = now_ns()
        self.parts.join.died(name, at_ns)
        self.parts.losses.died(name, "gateway", at_ns)
        open_requests = self.parts.live.of_gateway(name, epoch)
        lost = lost_requests(open_requests, self.parts.fleet.adapters(), at_ns)
        self.parts.ledger.died(name, epoch, lost)
        for live in open_requests:
            self._end(cut_short(live, at_ns))

    # ------------------------------------------------------------ supervisor

    @unfailing
    def hop(self, record: HopRecord) -> None:
        """Take one half of a hop of the supervisor's own."""
        if self.parts.settings.recording:
            self._hop(record, now_ns())

    def _hop(self, record: HopRecord, at_ns: int) -> None:
        if isinstance(record, HopReceived):
            transit_s = max(0, record.received_ns - record.sent_ns) / NS_PER_S
            self.parts.own.observe(names.HOP, transit_s, (record.message,))
        else:
            self.parts.assembly.sent(record, at_ns)
        self.parts.join.add(record, at_ns)

    @unfailing
    def count_supervisor(
        self,
        sent: Mapping[str, int],
        received: Mapping[str, int],
        fenced: int = 0,
        undecodable: int = 0,
    ) -> None:
        """Take the cumulative counts of the supervisor's own sockets, by message type name."""
        own = self.parts.own
        for message, count in sent.items():
            own.set(names.MESSAGES_SENT, (SUPERVISOR, message), count)
        for message, count in received.items():
            own.set(names.MESSAGES_RECEIVED, (SUPERVISOR, message), count)
        own.set(names.MESSAGES_FENCED, (SUPERVISOR,), fenced)
        own.set(names.MESSAGES_UNDECODABLE, (SUPERVISOR,), undecodable)

    @unfailing
    def publish_engine(self, row: EngineRow) -> None:
        """An engine changed. State changes go out at once, figures at most once a second."""
        before = self._published.get(row.id)
        self.rows[row.id] = row
        if before is None or _standing(before) != _standing(row):
            self._publish_row(row)

    @unfailing
    def publish_adapter(self, row: AdapterRow) -> None:
        """A LoRA adapter changed, or was removed."""
        self.stream.publish("adapter", row.model_dump_json())

    @unfailing
    def publish_operation(self, operation: Operation) -> None:
        """An operation changed."""
        before = self.operations.pop(operation.id, None)
        if operation.state in ENDED and (before is None or before.state not in ENDED):
            self.count(names.OPERATIONS, (operation.kind, operation.state))
        self.operations[operation.id] = operation
        if len(self.operations) > 1000:  # noqa: PLR2004 - what the snapshot may show
            del self.operations[next(iter(self.operations))]
        self.parts.assembly.rpc.operation(operation)
        self.stream.publish("operation", operation.model_dump_json())

    # ------------------------------------------------------------ requests

    def _end(self, record: RequestRecord) -> None:
        at_ns = now_ns()
        row = self.parts.live.end(record)
        line = headline(record, self.parts.recent.median_ttft_ms(at_ns))
        self.parts.recent.record(record)
        reason = self.parts.assembly.record(record, line)
        if reason is not None:
            self.parts.own.inc(names.TRACES_KEPT, (reason,))
        self._publish_request(row)

    def _publish_live(self, request_id: str) -> None:
        row = self.parts.live.row(request_id, now_ns())
        if row is not None and row.ended_at is None:
            self._publish_request(row)

    def _publish_request(self, row: RequestRow) -> None:
        self.stream.publish("request", row.model_dump_json())

    def _publish_row(self, row: EngineRow) -> None:
        self.rows[row.id] = row
        if self._published.get(row.id) != row:
            self._published[row.id] = row
            self.stream.publish("engine", row.model_dump_json())


def _standing(row: EngineRow) -> Iterable[object]:
    """What of an engine's row is worth telling at once."""
    return (
        row.state,
        row.epoch,
        row.pid,
        row.reason,
        row.phase,
        row.sleep_level,
        row.desired_sleep_level,
        row.restarts,
        row.allowed_actions,
    )
