"""The SQLite file of the trace store: schema, inserts, queries, retention. Synchronous.

One thread owns the connection. Times in the file are Unix nanoseconds. A trace can always be lost,
so a file of another version is replaced.
"""

import os
import sqlite3
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from appliance.telemetry.request_ids import engine_suffix, request_key
from appliance.telemetry.span_data import SpanData

VERSION = 1
FREE_SHARE = 0.8
"""Retention by size deletes the oldest until this share of the limit is in use."""
DELETE_SHARE = 16
"""A sixteenth of the spans at a time."""

SCHEMA = """
PRAGMA auto_vacuum = INCREMENTAL;
CREATE TABLE spans (
    id INTEGER PRIMARY KEY,
    trace_id TEXT NOT NULL,
    span_id TEXT NOT NULL,
    parent_id TEXT,
    name TEXT NOT NULL,
    kind TEXT NOT NULL,
    process TEXT NOT NULL,
    start_ns INTEGER NOT NULL,
    end_ns INTEGER NOT NULL,
    error TEXT,
    attributes BLOB NOT NULL
) STRICT;
CREATE INDEX spans_by_trace ON spans (trace_id);
CREATE TABLE links (
    request TEXT NOT NULL,
    span INTEGER NOT NULL,
    suffix TEXT NOT NULL,
    PRIMARY KEY (request, span)
) STRICT, WITHOUT ROWID;
CREATE TABLE requests (
    request TEXT PRIMARY KEY,
    received_ns INTEGER NOT NULL,
    trace_id TEXT NOT NULL,
    root_id TEXT NOT NULL,
    outcome TEXT NOT NULL,
    model TEXT,
    duration_ms REAL NOT NULL,
    ttft_ms REAL,
    name TEXT NOT NULL,
    headline TEXT NOT NULL,
    row BLOB NOT NULL
) STRICT;
CREATE INDEX requests_by_time ON requests (received_ns);
"""


class StoredRequest(NamedTuple):
    """A row of `requests`."""

    request: str
    """What all forms of its id share."""
    received_ns: int
    trace_id: str
    root_id: str
    outcome: str
    model: str | None
    duration_ms: float
    ttft_ms: float | None
    name: str
    headline: str
    row: bytes
    """JSON of its `RequestRow`."""


class StoredSpan(NamedTuple):
    """A span as it is read back; `suffix` tells which choice of the request a linked one serves."""

    trace_id: str
    span_id: str
    parent_id: str | None
    name: str
    kind: str
    process: str
    start_ns: int
    end_ns: int
    error: str | None
    attributes: bytes
    suffix: str | None = None


_COLUMNS = "trace_id, span_id, parent_id, name, kind, process, start_ns, end_ns, error, attributes"
_INSERT_SPAN = f"INSERT INTO spans (id, {_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"  # noqa: S608 - constants
_SELECT_TRACE = f"SELECT {_COLUMNS} FROM spans WHERE trace_id = ?"  # noqa: S608 - constants
_SELECT_LINKED = f"""
WITH sends AS (
    SELECT spans.*, links.suffix FROM links JOIN spans ON spans.id = links.span
    WHERE links.request = ?
)
SELECT {_COLUMNS}, suffix FROM sends
UNION ALL
SELECT {", ".join(f"p.{column.strip()}" for column in _COLUMNS.split(","))}, sends.suffix
FROM sends JOIN spans AS p ON p.trace_id = sends.trace_id AND p.parent_id = sends.span_id
"""  # noqa: S608 - constants


class TraceDb:
    """The open file.

    Args:
        path: Made with mode 0600 when it is not there.
        max_bytes: Upper bound of the space in use.
        max_age_ns: Older spans and requests are deleted.
        offset_ns: Added to a span's readings to make them Unix time.
    """

    def __init__(self, path: Path, max_bytes: int, max_age_ns: int, offset_ns: int) -> None:
        self._max_bytes = max_bytes
        self._max_age_ns = max_age_ns
        self._offset_ns = offset_ns
        self._connection = _open(path)
        self._next_id = self._number("SELECT coalesce(max(id), 0) + 1 FROM spans")

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def insert(self, spans: Sequence[SpanData], requests: Sequence[StoredRequest]) -> None:
        """Write a batch in one transaction."""
        rows: list[tuple[Any, ...]] = []
        links: list[tuple[str, int, str]] = []
        for span in spans:
            span_row_id = self._next_id
            self._next_id += 1
            rows.append((span_row_id, *_span_row(span, self._offset_ns)))
            if span.kind == "producer":
                links.extend(
                    (request_key(link.request_id), span_row_id, engine_suffix(link.request_id))
                    for link in span.links
                )
        with self._connection as transaction:
            transaction.executemany(_INSERT_SPAN, rows)
            transaction.executemany("INSERT OR IGNORE INTO links VALUES (?, ?, ?)", links)
            transaction.executemany(
                "INSERT OR REPLACE INTO requests VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", requests
            )

    def request(self, key: str) -> StoredRequest | None:
        """Return one request by what all forms of its id share."""
        cursor = self._connection.execute("SELECT * FROM requests WHERE request = ?", (key,))
        row = cursor.fetchone()
        return None if row is None else StoredRequest(*row)

    def spans(self, trace_id: str) -> list[StoredSpan]:
        """Return all spans of a trace."""
        rows = self._connection.execute(_SELECT_TRACE, (trace_id,))
        return [StoredSpan(*row) for row in rows]

    def linked(self, key: str) -> list[StoredSpan]:
        """Return the message spans of other traces that carried something for a request."""
        return [StoredSpan(*row) for row in self._connection.execute(_SELECT_LINKED, (key,))]

    def requests(
        self, limit: int, outcome: str | None, min_ms: float | None, model: str | None
    ) -> list[tuple[StoredRequest, int]]:
        """Return requests, newest first, each with the number of spans in its trace."""
        rows = self._connection.execute(
            "SELECT *, (SELECT count(*) FROM spans WHERE spans.trace_id = requests.trace_id)"
            " + 2 * (SELECT count(*) FROM links WHERE links.request = requests.request)"
            " FROM requests WHERE (?1 IS NULL OR outcome = ?1)"
            " AND (?2 IS NULL OR duration_ms >= ?2) AND (?3 IS NULL OR model = ?3)"
            " ORDER BY received_ns DESC LIMIT ?4",
            (outcome, min_ms, model, limit),
        )
        return [(StoredRequest(*row[:-1]), row[-1]) for row in rows]

    def used_bytes(self) -> int:
        """Return the space in use; freed pages do not count."""
        pages = self._number("PRAGMA page_count") - self._number("PRAGMA freelist_count")
        return pages * self._number("PRAGMA page_size")

    def retain(self, now_unix_ns: int) -> None:
        """Delete what is too old, and more of it if the file is too large."""
        oldest = self._oldest()
        self._delete_before(now_unix_ns - self._max_age_ns)
        if oldest != self._oldest():
            self._give_back()
        self.shrink()

    def shrink(self) -> None:
        """Delete the oldest if the file is too large; cheap when it is not."""
        if self.used_bytes() <= self._max_bytes:
            return
        while self.used_bytes() > self._max_bytes * FREE_SHARE and self._delete_oldest():
            pass
        self._give_back()

    def _oldest(self) -> int:
        return self._number("SELECT coalesce(min(id), 0) FROM spans")

    def _number(self, query: str) -> int:
        return int(self._connection.execute(query).fetchone()[0])

    def _delete_before(self, cutoff_ns: int) -> None:
        with self._connection as transaction:
            # ids grow with time, so the young ones are not looked at
            newest = transaction.execute(
                "SELECT id FROM spans WHERE end_ns >= ? ORDER BY id LIMIT 1", (cutoff_ns,)
            ).fetchone()
            first_kept = self._next_id if newest is None else newest[0]
            _delete_spans_before(transaction, first_kept)
            transaction.execute("DELETE FROM requests WHERE received_ns < ?", (cutoff_ns,))

    def _delete_oldest(self) -> bool:
        first = self._oldest()
        last = self._number("SELECT coalesce(max(id), 0) FROM spans")
        if first == last:
            return False
        cut = first + max(1, (last - first) // DELETE_SHARE)
        with self._connection as transaction:
            until = transaction.execute(
                "SELECT end_ns FROM spans WHERE id >= ? ORDER BY id LIMIT 1", (cut,)
            ).fetchone()[0]
            _delete_spans_before(transaction, cut)
            transaction.execute("DELETE FROM requests WHERE received_ns < ?", (until,))
        return True

    def _give_back(self) -> None:
        """Return the freed pages to the file system."""
        self._connection.execute("PRAGMA incremental_vacuum").fetchall()
        self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


def _delete_spans_before(transaction: sqlite3.Connection, first_kept: int) -> None:
    """Delete older spans and the links to them."""
    deleted = transaction.execute("DELETE FROM spans WHERE id < ?", (first_kept,))
    if deleted.rowcount:
        transaction.execute("DELETE FROM links WHERE span < ?", (first_kept,))


def _span_row(span: SpanData, offset_ns: int) -> Iterable[Any]:
    return (
        span.trace_id,
        span.span_id,
        span.parent_id,
        span.name,
        span.kind,
        span.process,
        span.start_ns + offset_ns,
        span.end_ns + offset_ns,
        span.error,
        msgspec.json.encode(span.attributes),
    )


def _open(path: Path) -> sqlite3.Connection:
    """Open the file; replace one of another version, or one that is damaged."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        return _connect(path)
    except sqlite3.DatabaseError:
        for suffix in ("", "-wal", "-shm"):
            path.with_name(path.name + suffix).unlink(missing_ok=True)
        return _connect(path)


def _connect(path: Path) -> sqlite3.Connection:
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    connection = sqlite3.connect(path)
    try:
        _migrate(connection)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = OFF")  # traces may be lost with the machine
        connection.execute("PRAGMA journal_size_limit = 4194304")
    except BaseException:
        connection.close()
        raise
    return connection


def _migrate(connection: sqlite3.Connection) -> None:
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version == 0:
        connection.executescript(f"{SCHEMA} PRAGMA user_version = {VERSION};")
    elif version != VERSION:
        raise sqlite3.DatabaseError(f"version {version}, expected {VERSION}")
