"""The local trace store: keeps every span within its bounds, in a file, in a thread of its own.

The event loop only appends to lists; batches are written by the thread, queries run there too.
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, TypeVar

from appliance.telemetry.span_data import SpanData
from appliance.telemetry.trace_db import StoredRequest, StoredSpan, TraceDb
from appliance.telemetry.wall_clock import WallClock
from engine.clock import now_ns

logger = logging.getLogger(__name__)

MAX_WAITING = 50_000
"""Spans that wait to be written; beyond, they are dropped and counted."""
RETAIN_EVERY_NS = 10_000_000_000

ResultT = TypeVar("ResultT")


class StoredTrace(NamedTuple):
    """All that the store has of one request."""

    request: StoredRequest
    spans: list[StoredSpan]
    """Of its trace."""
    linked: list[StoredSpan]
    """Messages of steps that carried something for it."""


class TraceStore:
    """Writes and reads traces.

    Args:
        path: The SQLite file.
        max_bytes: Bound of its size.
        max_age_s: Bound of its spans' age.
        clock: Of the hub.
    """

    def __init__(self, path: Path, max_bytes: int, max_age_s: float, clock: WallClock) -> None:
        self._open = lambda: TraceDb(path, max_bytes, int(max_age_s * 1e9), clock.offset_ns)
        self._clock = clock
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="trace-store")
        self._db: TraceDb | None = None
        self._spans: list[SpanData] = []
        self._requests: list[StoredRequest] = []
        self._lock = threading.Lock()
        self._writing = 0
        self._retained_ns = now_ns()
        self._closed = False
        self.dropped = 0
        """Spans that were not written: the thread was too far behind, or the file refused them."""

    def add_spans(self, spans: Sequence[SpanData]) -> None:
        """Keep spans; they are written with the next `flush`."""
        if self._closed or len(self._spans) + self._writing > MAX_WAITING:
            self.dropped += len(spans)
            return
        self._spans.extend(spans)

    def add_request(self, request: StoredRequest) -> None:
        """Keep a request's row; it is written with the next `flush`."""
        self._requests.append(request)

    def flush(self) -> None:
        """Hand what was added to the thread; does not wait."""
        if self._closed:
            return
        if self._spans or self._requests:
            spans, self._spans = self._spans, []
            requests, self._requests = self._requests, []
            self._account(len(spans))
            self._thread.submit(self._write, spans, requests)
        if now_ns() - self._retained_ns > RETAIN_EVERY_NS:
            self._retained_ns = now_ns()
            self._thread.submit(self._retain)

    async def request(self, key: str) -> StoredTrace | None:
        """Return everything about a request, after all that was added before."""
        return await self._ask(lambda db: _read_trace(db, key))

    async def requests(
        self, limit: int, outcome: str | None, min_ms: float | None, model: str | None
    ) -> list[tuple[StoredRequest, int]]:
        """Return requests, newest first, each with its number of spans."""
        return await self._ask(lambda db: db.requests(limit, outcome, min_ms, model))

    async def close(self) -> None:
        """Write what is left and close the file; idempotent."""
        if self._closed:
            return
        self.flush()
        self._closed = True
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._thread, self._close)
        self._thread.shutdown(wait=False)

    async def _ask(self, question: Callable[[TraceDb], ResultT]) -> ResultT:
        self.flush()
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, lambda: question(self._opened()))

    # ------------------------------------------------------ in the thread

    def _opened(self) -> TraceDb:
        if self._db is None:
            self._db = self._open()
        return self._db

    def _write(self, spans: list[SpanData], requests: list[StoredRequest]) -> None:
        try:
            self._opened().insert(spans, requests)
            self._opened().shrink()
        except Exception:  # a full disk must not end the thread
            if self.dropped == 0:
                logger.exception("the trace store refused %d spans", len(spans))
            self.dropped += len(spans)
        finally:
            self._account(-len(spans))

    def _retain(self) -> None:
        try:
            self._opened().retain(self._clock.unix_ns(now_ns()))
        except Exception:
            logger.exception("the trace store's old spans were not deleted")

    def _close(self) -> None:
        if self._db is not None:
            self._db.close()

    def _account(self, spans: int) -> None:
        with self._lock:
            self._writing += spans


def _read_trace(db: TraceDb, key: str) -> StoredTrace | None:
    request = db.request(key)
    if request is None:
        return None
    return StoredTrace(request, db.spans(request.trace_id), db.linked(key))
