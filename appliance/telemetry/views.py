"""What the hub shows: requests, traces, stats, events and metrics, for the admin API."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial

from appliance.supervisor.admin.insight_schemas import Explanation, Moment
from appliance.supervisor.admin.ports import EventQuery, NotFoundError, TraceQuery
from appliance.supervisor.admin.schemas import (
    EngineRow,
    JournalEvent,
    Operation,
    RequestRow,
    SloRow,
    Snapshot,
    Span,
    Stats,
    Trace,
    TraceRow,
)
from appliance.telemetry import names
from appliance.telemetry.event_stream import EventStream
from appliance.telemetry.explain import explain
from appliance.telemetry.exposition import Exposition
from appliance.telemetry.ledger import Totals
from appliance.telemetry.live_requests import LiveRequest
from appliance.telemetry.live_trace import live_trace
from appliance.telemetry.moment import moment
from appliance.telemetry.parts import HubConfig, Parts
from appliance.telemetry.recent import WINDOW_NS
from appliance.telemetry.request_ids import request_key
from appliance.telemetry.trace_facts import StoredRequest, StoredTrace
from appliance.telemetry.trace_view import shown_span, trace_view
from engine.clock import now_ns

SNAPSHOT_REQUESTS = 200
SNAPSHOT_EVENTS = 100
NS_PER_MS = 1e6
NS_PER_S = 1e9
ARRIVAL_NS = 1_500_000_000
"""So long a request's last reports, which travel in batches, are waited for."""
UNKNOWN_NS = 400_000_000
"""So long a request that nobody has told of yet is waited for."""
POLL_S = 0.05


class Views:
    """Implements `appliance.supervisor.admin.ports.TelemetryView`."""

    def __init__(self, config: HubConfig) -> None:
        self.parts = Parts(config)
        self._exposition = Exposition(
            self.parts.totals, lambda: self.parts.recent.examples.current(now_ns())
        )
        self.rows: dict[str, EngineRow] = {}
        self.operations: dict[str, Operation] = {}
        first_id = self.parts.clock.unix_ns(now_ns()) // 1_000_000
        self.stream = EventStream(lambda: self.snapshot().model_dump_json(), first_id)

    def requests(self, state: str | None, limit: int) -> list[RequestRow]:
        """Live requests first, then ended, newest first. `state`: `live`, `ended` or a state."""
        return self.parts.live.rows(state, limit, now_ns())

    def request(self, request_id: str) -> RequestRow:
        """One request, by any form of its id.

        Raises:
            NotFoundError: neither running nor among the last that ended.
        """
        row = self.parts.live.row(request_id, now_ns())
        if row is None:
            raise NotFoundError(f"no request {request_id}")
        return row

    async def traces(self, query: TraceQuery) -> list[TraceRow]:
        """Stored traces that fit."""
        found = await self.parts.store.requests(query)
        return [_trace_row(request) for request in found]

    async def trace(self, request_id: str, *, content: bool = False) -> Trace:
        """The whole tree of one request; `content`: with recorded prompts and outputs.

        A request that has just ended is waited for: its last reports are on their way.

        Raises:
            NotFoundError: unknown, or older than the store reaches back.
        """
        live = self.parts.live.find(request_id)
        if live is not None:
            return self._live_trace(live)
        stored, all_joined = await self._settled(request_id)
        build = partial(trace_view, stored, all_joined=all_joined, content=content)
        return await asyncio.to_thread(build)

    async def spans(self, name: str) -> list[Span]:
        """A trace of the appliance itself, parents first.

        Args:
            name: Id of an operation, of an engine (its last start) or of the trace.

        Raises:
            NotFoundError: there is none, or the store does not reach back so far.
        """
        operation = self.operations.get(name)
        found = await self.parts.store.own_trace(name if operation is None else operation.trace_id)
        if not found:
            raise NotFoundError(f"no trace of {name}: of an operation it comes with its end")
        shown = [shown_span(span, self.parts.clock) for span in found]
        return sorted(shown, key=lambda span: (span.start_ns, span.parent_id is not None))

    async def explanation(self, request_id: str) -> Explanation:
        """Why an ended request took as long as it did; one that has just ended is waited for.

        Raises:
            NotFoundError: unknown, still running, or older than the store reaches back.
        """
        if self.parts.live.find(request_id) is not None:
            raise NotFoundError(f"request {request_id} has not ended yet: ask again when it has")
        await self._settled(request_id)
        evidence = await self.parts.store.evidence(request_key(request_id))
        if evidence is None:
            raise NotFoundError(f"no trace of request {request_id}")
        return await asyncio.to_thread(explain, evidence)

    async def moment(self, at: datetime, window_s: float) -> Moment:
        """What happened around a point in time."""
        clock, half_ns = self.parts.clock, int(window_s * NS_PER_S / 2)
        middle_ns = clock.unix_ns(clock.reading_ns(at))
        facts = await self.parts.store.moment_facts(middle_ns - half_ns, middle_ns + half_ns)
        return await asyncio.to_thread(moment, replace(facts, zone=at.tzinfo or UTC))

    async def _settled(self, request_id: str) -> tuple[StoredTrace, bool]:
        """Return all facts about an ended request, and whether none is on its way any more."""
        asked_ns = now_ns()
        while True:
            stored = await self.parts.store.request(request_key(request_id))
            waited_ns = now_ns() - asked_ns
            if stored is not None:
                grows = self._grows(stored)
                if not grows or waited_ns > ARRIVAL_NS:
                    is_alone = stored.is_alone and not self.parts.live.is_live(
                        stored.record.trace_id
                    )
                    return stored._replace(is_alone=is_alone), not grows
            elif waited_ns > UNKNOWN_NS:
                raise NotFoundError(f"no trace of request {request_id}")
            await asyncio.sleep(POLL_S)

    def stats(self) -> Stats:
        """The current frame."""
        return self._stats(self.parts.totals())

    def snapshot(self) -> Snapshot:
        """What a new reader of the event stream gets first."""
        fleet = self.parts.fleet
        return Snapshot(
            engines=fleet.engines() or list(self.rows.values()),
            gateways=fleet.gateways(),
            requests=self.requests(None, SNAPSHOT_REQUESTS),
            operations=fleet.operations() or list(reversed(self.operations.values())),
            stats=self.stats(),
            events=self.parts.journal.latest(SNAPSHOT_EVENTS),
            adapters=fleet.adapters(),
        )

    async def events(self, query: EventQuery) -> list[JournalEvent]:
        """The journal, newest first; what the file could not take or cannot tell, memory does."""
        kept = {event.id: event for event in self.parts.journal.find(query)}
        try:
            stored = await self.parts.store.events(query)
        except sqlite3.Error:
            stored = []
        found = kept | {event.id: event for event in stored}
        return [found[number] for number in sorted(found, reverse=True)[: query.limit]]

    def slos(self) -> list[SloRow]:
        """The promises and how they are kept."""
        return self.parts.slo.rows()

    def subscribe(self, after_id: int | None) -> AsyncIterator[tuple[int, str, str]]:
        """Yield (id, event name, JSON) until the hub closes; see `event_stream`."""
        return self.stream.subscribe(after_id)

    async def metrics(self, accept: str) -> tuple[bytes, str]:
        """The Prometheus exposition and its content type."""
        return await self._exposition.get(accept)

    def _live_trace(self, live: LiveRequest) -> Trace:
        row = self.request(live.accepted.request_id)
        messages = self.parts.assembly.held(live.accepted.trace_id)
        return live_trace(live, row, messages, self.parts.clock, now_ns())

    def _grows(self, stored: StoredTrace) -> bool:
        """Whether reports of an ended request's messages are still on their way."""
        record = stored.record
        if stored.request.offset_ns != self.parts.clock.offset_ns:
            return False  # of an earlier run
        return self.parts.join.awaits(record.trace_id, record.received_ns, record.ended_ns)

    def _stats(self, totals: Totals) -> Stats:
        parts, at_ns = self.parts, now_ns()
        recent, engines = parts.recent, parts.levels.latest()
        return Stats(
            at=parts.clock.at(at_ns),
            window_s=WINDOW_NS / NS_PER_S,
            running=sum(stats.running for stats in engines),
            waiting=sum(stats.waiting for stats in engines),
            held=parts.live.num_held,
            requests_per_s=recent.requests_per_s(at_ns),
            prompt_tokens_per_s=round(recent.prompt_tokens.per_s(at_ns), 2),
            generation_tokens_per_s=round(recent.generation_tokens.per_s(at_ns), 2),
            error_ratio=recent.error_ratio(at_ns),
            ttft_ms=recent.ttft_ms.percentiles(at_ns),
            tpot_ms=recent.tpot_ms.percentiles(at_ns),
            queue_ms=recent.queue_ms.percentiles(at_ns),
            e2e_ms=recent.e2e_ms.percentiles(at_ns),
            received=totals.total(names.REQUESTS_RECEIVED),
            rejected=totals.total(names.REQUESTS_REJECTED),
            finished=totals.total(names.REQUESTS_ENDED, "finished"),
            aborted=totals.total(names.REQUESTS_ENDED, "aborted"),
            failed=totals.total(names.REQUESTS_ENDED, "failed"),
            dropped_records=totals.total(names.RECORDS_DROPPED),
            slos=parts.slo.rows(),
        )


def _trace_row(request: StoredRequest) -> TraceRow:
    member = request.member
    return TraceRow(
        request_id=member.request,
        trace_id=request.trace_id,
        name=request.name,
        outcome=member.outcome,
        model=request.model,
        received_at=datetime.fromtimestamp(request.received_unix_ns / NS_PER_S, UTC),
        duration_ms=round(member.duration_ms, 3),
        ttft_ms=None if member.ttft_ms is None else round(member.ttft_ms, 3),
        key_id=request.key_id,
        engine=request.engine,
        headline=request.headline,
    )
