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
from appliance.telemetry.hop_join import CALL
from appliance.telemetry.journal import Severity
from appliance.telemetry.parts import SUPERVISOR, Fleet, HubConfig
from appliance.telemetry.records import AccountsSnapshot, RequestRecord
from appliance.telemetry.request_facts import duration_ns, milliseconds, ttft_ns
from appliance.telemetry.request_ids import request_key
from appliance.telemetry.start_spans import start_spans
from appliance.telemetry.trace_db import StoredRequest
from appliance.telemetry.unfailing import unfailing
from appliance.telemetry.views import Views
from engine.clock import now_ns
from engine.wire.hops import HopReceived, HopRecord
from engine.wire.messages import (
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


class Hub(Views):
    """Takes reports in; what it shows is in `Views`."""

    def __init__(self, config: HubConfig) -> None:
        super().__init__(config)
        self._faults: set[str] = set()
        self._started: set[tuple[str, int]] = set()
        self._export_failing = False
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
        tick = 0
        while True:
            await asyncio.sleep(TICK_S)
            tick += 1
            self._tick()
            if tick % TICKS_PER_S == 0:
                self._each_second()

    async def close(self) -> None:
        """Write and send what is left; the event stream ends."""
        at_ns = now_ns()
        self.stream.close()
        self.parts.join.finish(at_ns)
        self.parts.assembly.finish(at_ns)
        await self.parts.store.close()
        if self.parts.export is not None:
            await asyncio.to_thread(self.parts.export.close, CLOSE_S)

    @unfailing
    def _tick(self) -> None:
        at_ns = now_ns()
        self.parts.join.expire(at_ns)
        self.parts.assembly.expire(at_ns)
        self.parts.store.flush()
        self._watch_export()

    @unfailing
    def _each_second(self) -> None:
        for row in self.parts.fleet.engines():
            self._publish_row(row)
        for row in self.parts.live.take_changed(now_ns()):
            self._publish_request(row)
        self.stream.publish("stats", self.stats().model_dump_json())

    def _watch_export(self) -> None:
        """Say once that the collector refuses spans, and once that it takes them again."""
        export = self.parts.export
        if export is None or export.failing == self._export_failing:
            return
        self._export_failing = export.failing
        if export.failing:
            self.journal("export.failing", "warning", SUPERVISOR, f"no spans to {export.endpoint}")
        else:
            self.journal("export.works", "info", SUPERVISOR, f"spans go to {export.endpoint}")

    def count_fault(self, where: str, error: Exception) -> None:
        """A report could not be taken."""
        self.parts.own.inc(names.RECORDS_DROPPED, (SUPERVISOR, "hub_fault"))
        if where not in self._faults:
            self._faults.add(where)
            text = "the telemetry hub failed in %s; further failures are only counted"
            logger.error(text, where, exc_info=error)

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
                parts.levels.stats(engine_id, epoch, message)
                parts.recent.prompt_tokens.set(at_ns, parts.levels.prompt_tokens)
                parts.recent.generation_tokens.set(at_ns, parts.levels.generation_tokens)
            case EngineRecords():
                for hop in message.hops:
                    self.hop(hop)
                for step in message.steps:
                    parts.assembly.step(step)
            case EngineReady():
                self._engine_started(engine_id, epoch, message)
            case _:
                pass

    def _engine_started(self, engine_id: str, epoch: int, ready: EngineReady) -> None:
        """Trace the start of an engine, once."""
        if (engine_id, epoch) not in self._started:
            self._started.add((engine_id, epoch))
            spans = start_spans(engine_id, epoch, ready)
            if spans:
                self.parts.assembly.emit(spans)

    @unfailing
    def engine_died(self, engine_id: str, epoch: int, reason: str) -> None:
        """An engine's epoch is over: its counts stay, what was sent to it is lost."""
        at_ns = now_ns()
        self.parts.join.died(engine_id, at_ns)
        self.parts.assembly.rpc.died(engine_id, at_ns)
        snapshot = self.parts.levels.died(engine_id, epoch)
        if snapshot is not None:
            self.parts.ledger.enter(snapshot)
            self.parts.ledger.died(engine_id, snapshot.epoch)
        logger.debug("the accounts of %s (epoch %d) are closed: %s", engine_id, epoch, reason)

    # ------------------------------------------------------------ gateways

    @unfailing
    def gateway_records(self, message: GatewayRecords) -> None:
        """Take a gateway's records."""
        live = self.parts.live
        for accepted in message.accepted:
            self.parts.join.lives(accepted.gateway, now_ns())
            live.accept(accepted)
            self._publish_live(accepted.request_id)
        for first in message.first_tokens:
            live.first_token(first)
            self._publish_live(first.request_id)
        for hop in message.hops:
            self.hop(hop)
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
        if not message.live and _nothing_runs(snapshot):
            self.parts.live.forget_lost(snapshot.process, snapshot.taken_ns - LOST_NS)

    @unfailing
    def gateway_died(self, name: str, epoch: int) -> None:
        """A gateway's epoch is over: its counts stay, its open requests have failed."""
        at_ns = now_ns()
        self.parts.join.died(name, at_ns)
        self.parts.ledger.died(name, epoch)
        for live in self.parts.live.of_gateway(name, epoch):
            self._end(cut_short(live, at_ns))

    # ------------------------------------------------------------ supervisor

    @unfailing
    def hop(self, record: HopRecord) -> None:
        """Take one half of a hop, from any process."""
        if isinstance(record, HopReceived):
            transit_s = max(0, record.received_ns - record.sent_ns) / NS_PER_S
            self.parts.own.observe(names.HOP, transit_s, (record.message,))
        elif record.message == CALL:
            self.parts.assembly.rpc.sent(record)
        self.parts.join.add(record, now_ns())

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
    def journal(self, kind: str, level: Severity, subject: str, text: str) -> None:
        """Enter an event into the journal and the event stream."""
        event = self.parts.journal.add(kind, level, subject, text)
        self.stream.publish("event", event.model_dump_json())

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
        self.operations.pop(operation.id, None)
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
        self.parts.assembly.record(record)
        self.parts.store.add_request(self._stored(record, row, line))
        self._publish_request(row)

    def _stored(self, record: RequestRecord, row: RequestRow, line: str) -> StoredRequest:
        return StoredRequest(
            request=request_key(record.request_id),
            received_ns=self.parts.clock.unix_ns(record.received_ns),
            trace_id=record.trace_id,
            root_id=record.span_id,
            outcome=record.outcome.value,
            model=record.model,
            duration_ms=milliseconds(duration_ns(record)) or 0.0,
            ttft_ms=milliseconds(ttft_ns(record)),
            name=f"{record.method} {record.route}",
            headline=line,
            row=row.model_dump_json().encode(),
        )

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


def _nothing_runs(snapshot: AccountsSnapshot) -> bool:
    running = names.REQUESTS_RUNNING.name
    return not any(gauge.value for gauge in snapshot.gauges if gauge.name == running)
