"""Writes the trace store's file and keeps it within its bounds. Synchronous.

One thread owns the connection; `trace_queries` reads. Steps and their messages, by far the most,
go in as one compressed row per engine and flush.
"""

import sqlite3
import zlib
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import msgspec

from appliance.telemetry.hop_join import Hop
from appliance.telemetry.span_data import SpanData
from appliance.telemetry.trace_facts import Facts, StepChunk, bounds_ns, stored_request
from appliance.telemetry.trace_schema import open_file
from engine.wire.hops import StepRecord

FREE_SHARE = 0.8
"""Retention by size deletes the oldest until this share of the limit is in use."""
DELETE_SHARE = 16
"""A sixteenth of the stored time at once."""
MAX_CHUNK: Final = 1000
"""Steps and messages each in one row: encoding holds the interpreter meanwhile."""
MAX_EVENTS: Final = 20_000
EVENTS_NS: Final = 30 * 86_400 * 10**9
"""The journal reaches back further than the traces: it is small."""
BY_TIME: Final = {
    "steps": "until_ns",
    "hops": "until_ns",
    "spans": "until_ns",
    "requests": "ended_unix_ns",
    "losses": "until_ns",
}
"""Tables of facts with the column that tells their age."""

_encode = msgspec.msgpack.Encoder().encode
_Engine = tuple[str, int]
"""Id and epoch."""
_Row = tuple[Any, ...]


class TraceDb:
    """The open file.

    Args:
        path: Made with mode 0600 when it is not there.
        max_bytes: Upper bound of the space in use.
        max_age_ns: Older facts are deleted.
        offset_ns: Added to a reading to make it Unix time.
    """

    def __init__(self, path: Path, max_bytes: int, max_age_ns: int, offset_ns: int) -> None:
        self._max_bytes = max_bytes
        self._max_age_ns = max_age_ns
        self._offset_ns = offset_ns
        self.connection = open_file(path)
        self._path, self._inode = path, path.stat().st_ino

    def is_gone(self) -> bool:
        """Whether somebody deleted or replaced the file: what is written would be lost."""
        try:
            return self._path.stat().st_ino != self._inode
        except OSError:
            return True

    def close(self) -> None:
        """Close the file."""
        self.connection.close()

    def insert(self, facts: Facts) -> None:
        """Write a batch in one transaction."""
        chunks = list(self._chunks(facts.steps, facts.outputs))
        with self.connection as transaction:
            _many(
                transaction,
                "steps (engine, epoch, since_ns, until_ns, offset_ns, facts, chunk)",
                7,
                chunks,
            )
            _many(transaction, "hops (trace, until_ns, hop)", 3, map(self._hop, facts.hops))
            columns = "spans (trace, name, until_ns, offset_ns, span)"
            _many(transaction, columns, 5, map(self._span, facts.spans))
            rows = (self._request(record, line) for record, line in facts.requests)
            _many(transaction, f"requests ({REQUEST_COLUMNS}, record)", 27, rows)
            events = (
                (e.id, int(e.at.timestamp() * 1e6) * 1000, e.kind, e.level, e.subject, e.text)
                for e in facts.events
            )
            _many(transaction, "events", 6, events)
            offset_ns = self._offset_ns
            losses = (
                (x.process, x.stage, x.since_ns + offset_ns, x.until_ns + offset_ns, x.dropped)
                for x in facts.losses
            )
            _many(transaction, "losses (process, stage, since_ns, until_ns, dropped)", 5, losses)

    def used_bytes(self) -> int:
        """Return the space in use; freed pages do not count."""
        pages = self._number("PRAGMA page_count") - self._number("PRAGMA freelist_count")
        return pages * self._number("PRAGMA page_size")

    def figures(self) -> tuple[int, int, int]:
        """Return the number of facts, the bytes in use and the oldest's Unix time."""
        facts = self._number("SELECT coalesce(sum(facts), 0) FROM steps")
        for table in ("hops", "spans", "requests"):
            facts += self._number(f"SELECT count(*) FROM {table}")  # noqa: S608 - constants
        return facts, self.used_bytes(), self._oldest_ns() or 0

    def retain(self, now_unix_ns: int) -> None:
        """Delete what is too old, and more of it if the file is too large."""
        oldest_ns = self._oldest_ns()
        cutoff_ns = now_unix_ns - self._max_age_ns
        if oldest_ns is not None and oldest_ns < cutoff_ns:
            self._delete_before(cutoff_ns)
            self._give_back()
        with self.connection as transaction:
            cutoff_ns = min(cutoff_ns, now_unix_ns - EVENTS_NS)
            transaction.execute("DELETE FROM events WHERE at_unix_ns < ?", (cutoff_ns,))
            transaction.execute(
                "DELETE FROM events WHERE id <= (SELECT max(id) FROM (SELECT id FROM events"
                " ORDER BY id DESC LIMIT -1 OFFSET ?))",
                (MAX_EVENTS,),
            )
        self.shrink()

    def shrink(self) -> None:
        """Delete the oldest if the file is too large; cheap when it is not."""
        if self.used_bytes() <= self._max_bytes:
            return
        while self.used_bytes() > self._max_bytes * FREE_SHARE and self._delete_oldest():
            pass
        self._give_back()

    def _number(self, query: str) -> int:
        return int(self.connection.execute(query).fetchone()[0])

    def _extreme_ns(self, which: str) -> list[int]:
        found = (
            self.connection.execute(f"SELECT {which}({column}) FROM {table}").fetchone()[0]  # noqa: S608 - constants
            for table, column in BY_TIME.items()
            if table != "losses"
        )
        return [at_ns for at_ns in found if at_ns is not None]

    def _oldest_ns(self) -> int | None:
        return min(self._extreme_ns("min"), default=None)

    def _delete_before(self, cutoff_ns: int) -> None:
        with self.connection as transaction:
            for table, column in BY_TIME.items():
                transaction.execute(f"DELETE FROM {table} WHERE {column} < ?", (cutoff_ns,))  # noqa: S608 - constants

    def _delete_oldest(self) -> bool:
        oldest_ns, newest_ns = self._oldest_ns(), max(self._extreme_ns("max"), default=None)
        if oldest_ns is None or newest_ns is None:
            return False
        self._delete_before(oldest_ns + max(1, (newest_ns - oldest_ns) // DELETE_SHARE))
        return True

    def _give_back(self) -> None:
        """Return the freed pages to the file system."""
        self.connection.execute("PRAGMA incremental_vacuum").fetchall()
        self.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    # ------------------------------------------------------------ rows

    def _chunks(self, steps: list[StepRecord], outputs: list[Hop]) -> Iterable[_Row]:
        by_engine: defaultdict[_Engine, tuple[list[StepRecord], list[Hop]]] = defaultdict(
            lambda: ([], [])
        )
        for step in steps:
            by_engine[step.engine_id, step.epoch][0].append(step)
        for hop in outputs:
            half = hop.sent or hop.received
            assert half is not None
            by_engine[half.sender, half.sender_epoch][1].append(hop)
        for engine, (own_steps, own_outputs) in by_engine.items():
            for at in range(0, max(len(own_steps), len(own_outputs)), MAX_CHUNK):
                part = slice(at, at + MAX_CHUNK)
                yield self._chunk(engine, own_steps[part], own_outputs[part])

    def _chunk(self, engine: _Engine, steps: list[StepRecord], outputs: list[Hop]) -> _Row:
        since_ns, until_ns = bounds_ns(steps, outputs)
        return (
            *engine,
            since_ns + self._offset_ns,
            until_ns + self._offset_ns,
            self._offset_ns,
            len(steps) + len(outputs),
            zlib.compress(_encode(StepChunk(tuple(steps), tuple(outputs))), 1),
        )

    def _hop(self, hop: Hop) -> _Row:
        sent, received = hop.sent, hop.received
        trace = b"" if sent is None else bytes.fromhex(sent.trace_id)
        at_ns = sent.sent_ns if sent is not None else 0
        end_ns = received.done_ns if received is not None else at_ns
        return trace, end_ns + self._offset_ns, _encode(hop)

    def _span(self, span: SpanData) -> _Row:
        return (
            bytes.fromhex(span.trace_id),
            span.name,
            span.end_ns + self._offset_ns,
            self._offset_ns,
            _encode(span),
        )

    def _request(self, record: Any, headline: str) -> _Row:
        row = stored_request(record, headline, self._offset_ns)
        return (*row[:-1], *row.member, _encode(record))


REQUEST_COLUMNS: Final = (
    "key, trace_id, received_unix_ns, model, route, key_id, engine, name, headline,"
    " offset_ns, request, ended_unix_ns, outcome, prompt_tokens, cached_tokens, completion_tokens,"
    " duration_ms, ttft_ms, front_ms, dispatch_ms, queue_ms, prefill_ms, decode_ms, stream_ms,"
    " tpot_ms, max_batch"
)
"""In the order of `StoredRequest`, its member last."""


def _many(transaction: sqlite3.Connection, into: str, columns: int, rows: Iterable[_Row]) -> None:
    marks = ", ".join("?" * columns)
    transaction.executemany(f"INSERT OR REPLACE INTO {into} VALUES ({marks})", rows)  # noqa: S608 - constants
