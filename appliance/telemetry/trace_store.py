"""The local trace store: keeps facts within its bounds, in a file, in a thread of its own.

The event loop only appends to lists; batches are written by the thread, queries run there too. A
file that cannot be written costs facts, which are counted, and nothing else.
"""

import asyncio
import logging
import sqlite3
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, TypeVar

from appliance.supervisor.admin.ports import EventQuery, TraceQuery
from appliance.supervisor.admin.schemas import JournalEvent
from appliance.telemetry.evidence import Evidence, MomentFacts
from appliance.telemetry.evidence_queries import read_evidence, read_moment
from appliance.telemetry.hop_join import Hop
from appliance.telemetry.records import RequestRecord
from appliance.telemetry.span_data import SpanData
from appliance.telemetry.trace_db import TraceDb
from appliance.telemetry.trace_facts import Facts, Loss, StoredRequest, StoredTrace
from appliance.telemetry.trace_queries import (
    Span,
    read_events,
    read_own_trace,
    read_rows,
    read_trace,
)
from appliance.telemetry.wall_clock import WallClock
from engine.clock import now_ns
from engine.wire.hops import StepRecord

logger = logging.getLogger(__name__)

MAX_WAITING = 50_000
"""Facts that wait to be written; beyond, they are dropped and counted."""
FLUSH_NS = 500_000_000
"""Steps of so long become one row: fewer, and better compressed."""
RETAIN_EVERY_NS = 10_000_000_000

ResultT = TypeVar("ResultT")


class StoreFigures(NamedTuple):
    """How much the store holds."""

    facts: int
    used_bytes: int
    oldest_ns: int
    """Unix time of the oldest; 0: it is empty."""


class TraceStore:
    """Writes and reads traces.

    Args:
        path: The SQLite file.
        max_bytes: Bound of its size.
        max_age_s: Bound of its facts' age.
        clock: Of the hub.
    """

    def __init__(self, path: Path, max_bytes: int, max_age_s: float, clock: WallClock) -> None:
        self.path = path
        self._open = lambda: TraceDb(path, max_bytes, int(max_age_s * 1e9), clock.offset_ns)
        self._clock = clock
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="trace-store")
        self._db: TraceDb | None = None
        self._facts = Facts()
        self._num_waiting = 0
        self._lock = threading.Lock()
        self._writing = 0
        self._flushed_ns = self._retained_ns = now_ns()
        self._closed = False
        self.dropped = 0
        """Facts that were not written: the thread was too far behind, or the file refused them."""
        self.failing: str | None = None
        """Why the file refused the last batch."""
        self.used_bytes = 0
        """As of the last batch."""

    @property
    def depth(self) -> int:
        """Facts that wait to be written."""
        return self._num_waiting + self._writing

    def add_step(self, step: StepRecord) -> None:
        """Keep a step; like all that is added, it is written with a later `flush`."""
        if self._has_room(1):
            self._facts.steps.append(step)

    def add_output(self, hop: Hop) -> None:
        """Keep a message of a step."""
        if self._has_room(1):
            self._facts.outputs.append(hop)

    def add_hop(self, hop: Hop) -> None:
        """Keep a message of a request's trace."""
        if self._has_room(1):
            self._facts.hops.append(hop)

    def add_spans(self, spans: Sequence[SpanData]) -> None:
        """Keep spans that are not built from other facts."""
        if self._has_room(len(spans)):
            self._facts.spans.extend(spans)

    def add_request(self, record: RequestRecord, headline: str) -> None:
        """Keep an ended request."""
        if self._has_room(1):
            self._facts.requests.append((record, headline))

    def add_event(self, event: JournalEvent) -> None:
        """Keep an entry of the journal."""
        if self._has_room(1):
            self._facts.events.append(event)

    def add_loss(self, loss: Loss) -> None:
        """Note that records went missing."""
        if self._has_room(1):
            self._facts.losses.append(loss)

    def flush(self, at_ns: int | None = None) -> None:
        """Hand what was added to the thread; does not wait.

        Args:
            at_ns: The time: what was flushed a moment ago waits for more. None: now at any rate.
        """
        if self._closed or (at_ns is not None and at_ns - self._flushed_ns < FLUSH_NS):
            return
        self._flushed_ns = at_ns or now_ns()
        if self._num_waiting:
            facts, self._facts, self._num_waiting = self._facts, Facts(), 0
            self._account(len(facts))
            self._thread.submit(self._write, facts)
        if self._flushed_ns - self._retained_ns > RETAIN_EVERY_NS:
            self._retained_ns = self._flushed_ns
            self._thread.submit(self._retain)

    async def request(self, key: str) -> StoredTrace | None:
        """Return everything about a request, after all that was added before."""
        return await self._ask(lambda db: read_trace(db.connection, key))

    async def own_trace(self, name: str) -> list[SpanData]:
        """Return a trace of the appliance itself; see `trace_queries.read_own_trace`."""
        return await self._ask(lambda db: read_own_trace(db.connection, name))

    async def requests(self, query: TraceQuery) -> list[StoredRequest]:
        """Return requests that fit."""
        return await self._ask(lambda db: read_rows(db.connection, query))

    async def events(self, query: EventQuery) -> list[JournalEvent]:
        """Return journal entries that fit, newest first."""
        return await self._ask(lambda db: read_events(db.connection, query))

    async def evidence(self, key: str) -> Evidence | None:
        """Return what an explanation of an ended request is made from; None: it is unknown."""
        return await self._ask(lambda db: read_evidence(db.connection, key))

    async def moment_facts(self, since_unix_ns: int, until_unix_ns: int) -> MomentFacts:
        """Return what is known about a span of time."""
        window = Span(since_unix_ns, until_unix_ns)
        return await self._ask(lambda db: read_moment(db.connection, window))

    async def figures(self) -> StoreFigures:
        """Return how much is stored."""
        return await self._ask(lambda db: StoreFigures(*db.figures()))

    async def close(self) -> None:
        """Write what is left and close the file; idempotent."""
        if self._closed:
            return
        self.flush()
        self._closed = True
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._thread, self._close)
        self._thread.shutdown(wait=False)

    def _has_room(self, facts: int) -> bool:
        if self._closed or self._num_waiting + self._writing >= MAX_WAITING:
            self.dropped += facts
            return False
        self._num_waiting += facts
        return True

    async def _ask(self, question: Callable[[TraceDb], ResultT]) -> ResultT:
        """Answer in the thread. Raises sqlite3.Error: the file cannot be used."""
        self.flush()
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, lambda: question(self._opened()))

    # ------------------------------------------------------ in the thread

    def _opened(self) -> TraceDb:
        if self._db is not None and self._db.is_gone():
            self._reopen_later()
        if self._db is None:
            self._db = self._open()
        return self._db

    def _write(self, facts: Facts) -> None:
        try:
            db = self._opened()
            db.insert(facts)
            db.shrink()
            self.used_bytes = db.used_bytes()
            self.failing = None
        except Exception as error:  # a full disk must not end the thread
            self.dropped += len(facts)
            if self.failing is None:
                logger.exception("the trace store refused %d facts", len(facts))
            self.failing = str(error) or type(error).__name__
            self._reopen_later()
        finally:
            self._account(-len(facts))

    def _reopen_later(self) -> None:
        """Close the file: it is opened again, and replaced if it is damaged or gone."""
        db, self._db = self._db, None
        if db is not None:
            try:
                db.close()
            except sqlite3.Error as error:
                logger.debug("the trace store was not closed: %s", error)

    def _retain(self) -> None:
        try:
            self._opened().retain(self._clock.unix_ns(now_ns()))
        except Exception:
            logger.exception("the trace store's old facts were not deleted")

    def _close(self) -> None:
        if self._db is not None:
            self._db.close()

    def _account(self, facts: int) -> None:
        with self._lock:
            self._writing += facts
