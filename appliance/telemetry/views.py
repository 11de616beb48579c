"""What the hub shows: requests, traces, stats, events and metrics, for the admin API."""

import asyncio
from collections.abc import AsyncIterator

from appliance.supervisor.admin.ports import NotFoundError
from appliance.supervisor.admin.schemas import (
    EngineRow,
    JournalEvent,
    Operation,
    RequestRow,
    Snapshot,
    Stats,
    Trace,
    TraceRow,
)
from appliance.telemetry import names
from appliance.telemetry.event_stream import EventStream
from appliance.telemetry.ledger import Totals
from appliance.telemetry.live_requests import LiveRequest
from appliance.telemetry.live_trace import live_trace
from appliance.telemetry.parts import HubConfig, Parts
from appliance.telemetry.prometheus_examples import Examples
from appliance.telemetry.recent import WINDOW_NS
from appliance.telemetry.request_ids import request_key
from appliance.telemetry.trace_db import StoredRequest
from appliance.telemetry.trace_view import trace_view
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

    async def traces(
        self, *, limit: int, outcome: str | None, min_ms: float | None, model: str | None
    ) -> list[TraceRow]:
        """Stored traces, newest first."""
        found = await self.parts.store.requests(limit, outcome, min_ms, model)
        return [_trace_row(request, num_spans) for request, num_spans in found]

    async def trace(self, request_id: str) -> Trace:
        """The whole tree of one request.

        A request that has just ended is waited for: its last reports are on their way.

        Raises:
            NotFoundError: unknown, or older than the store reaches back.
        """
        live = self.parts.live.find(request_id)
        if live is not None:
            return self._live_trace(live)
        asked_ns = now_ns()
        while True:
            stored = await self.parts.store.request(request_key(request_id))
            waited_ns = now_ns() - asked_ns
            if stored is not None:
                grows = self._grows(stored.request)
                if not grows or waited_ns > ARRIVAL_NS:
                    return await asyncio.to_thread(trace_view, stored, all_joined=not grows)
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
            events=self.events(SNAPSHOT_EVENTS),
            adapters=fleet.adapters(),
        )

    def events(self, limit: int) -> list[JournalEvent]:
        """Journal, newest first."""
        return self.parts.journal.latest(limit)

    def subscribe(self, after_id: int | None) -> AsyncIterator[tuple[int, str, str]]:
        """Yield (id, event name, JSON) until the hub closes; see `event_stream`."""
        return self.stream.subscribe(after_id)

    async def metrics(self, accept: str) -> tuple[bytes, str]:
        """The Prometheus exposition and its content type."""
        totals, examples = self.parts.totals(), dict(self.parts.recent.examples)
        return await asyncio.to_thread(_render, totals, examples, accept)

    def _live_trace(self, live: LiveRequest) -> Trace:
        row = self.request(live.accepted.request_id)
        messages = self.parts.assembly.held(live.accepted.trace_id)
        return live_trace(live, row, messages, self.parts.clock, now_ns())

    def _grows(self, request: StoredRequest) -> bool:
        """Whether reports of an ended request's messages are still on their way."""
        start_ns = request.received_ns - self.parts.clock.offset_ns
        end_ns = start_ns + int(request.duration_ms * NS_PER_MS)
        return self.parts.join.awaits(request.trace_id, start_ns, end_ns)

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
        )


def _render(totals: Totals, examples: Examples, accept: str) -> tuple[bytes, str]:
    # imported with the first scrape, so that the start does not wait for it
    from appliance.telemetry.prometheus_text import render  # noqa: PLC0415

    return render(totals, examples, accept)


def _trace_row(request: StoredRequest, num_spans: int) -> TraceRow:
    row = RequestRow.model_validate_json(request.row)
    return TraceRow(
        request_id=row.id,
        trace_id=request.trace_id,
        name=request.name,
        outcome=request.outcome,
        model=request.model,
        received_at=row.received_at,
        duration_ms=request.duration_ms,
        ttft_ms=request.ttft_ms,
        spans=num_spans,
    )
