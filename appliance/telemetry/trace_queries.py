"""Reads the trace store's file: one request, lists, what an explanation needs. Synchronous."""

import re
import sqlite3
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from appliance.supervisor.admin.ports import EventQuery, TraceQuery
from appliance.supervisor.admin.schemas import JournalEvent
from appliance.telemetry.evidence import (
    CohortMember,
)
from appliance.telemetry.hop_join import Hop
from appliance.telemetry.journal import at_least
from appliance.telemetry.records import RequestRecord
from appliance.telemetry.span_data import SpanData
from appliance.telemetry.trace_db import REQUEST_COLUMNS
from appliance.telemetry.trace_facts import (
    StepChunk,
    StoredRequest,
    StoredTrace,
    serves,
)

SETTLE_NS: Final = 10 * 10**9
"""Messages that serve a request may come so long after its end: the confirmation of an abort."""
CHUNK_NS: Final = 60 * 10**9
"""No chunk reaches further back: a hop waits at most half of this for its other half."""
HUB: Final = "supervisor"
_MEMBER_AT: Final = len(StoredRequest._fields) - 1

START: Final = "engine.start"
MAX_STARTS: Final = 1000
"""Starts of engines that are looked through for the last one of one of them."""
_TRACE_ID: Final = re.compile("[0-9a-f]{32}")

_chunk = msgspec.msgpack.Decoder(StepChunk).decode
_hop = msgspec.msgpack.Decoder(Hop).decode
_span = msgspec.msgpack.Decoder(SpanData).decode
_record = msgspec.msgpack.Decoder(RequestRecord).decode


@dataclass(frozen=True, slots=True)
class Span:
    """A span of time, Unix nanoseconds."""

    since_ns: int
    until_ns: int


def read_trace(connection: sqlite3.Connection, key: str) -> StoredTrace | None:
    """Return everything about a request."""
    found = read_request(connection, key)
    if found is None:
        return None
    request, record = found
    trace = bytes.fromhex(request.trace_id)
    whole = Span(request.received_unix_ns, request.member.ended_unix_ns)
    window = Span(whole.since_ns, whole.until_ns + SETTLE_NS)
    same = connection.execute(
        "SELECT count(*) FROM requests WHERE trace_id = ?", (request.trace_id,)
    ).fetchone()[0]
    return StoredTrace(
        request=request,
        record=record,
        hops=list(read_hops(connection, trace)),
        outputs=[
            hop
            for chunk in read_chunks(connection, window, engines_of(record))
            for hop in chunk.outputs
            if serves(hop, key) is not None
        ],
        spans=list(read_spans(connection, trace)),
        is_alone=same == 1,
        lost_records=lost_records(connection, whole, processes_of(record)),
    )


def read_rows(connection: sqlite3.Connection, query: TraceQuery) -> list[StoredRequest]:
    """Return requests that fit."""
    order = "duration_ms" if query.slowest_first else "received_unix_ns"
    rows = connection.execute(
        f"SELECT {REQUEST_COLUMNS} FROM requests"  # noqa: S608 - constants
        " WHERE (?1 IS NULL OR outcome = ?1) AND (?2 IS NULL OR duration_ms >= ?2)"
        " AND (?3 IS NULL OR model = ?3) AND (?4 IS NULL OR key_id = ?4)"
        " AND (?5 IS NULL OR engine = ?5) AND (?6 IS NULL OR trace_id = ?6)"
        " AND received_unix_ns >= ?7 AND received_unix_ns <= ?8"
        f" ORDER BY {order} DESC LIMIT ?9",
        (
            query.outcome,
            query.min_ms,
            query.model,
            query.key_id,
            query.engine,
            query.trace_id,
            _unix_ns(query.since, 0),
            _unix_ns(query.until, 1 << 62),
            query.limit,
        ),
    )
    return [stored_row(row) for row in rows]


def read_events(connection: sqlite3.Connection, query: EventQuery) -> list[JournalEvent]:
    """Return journal entries that fit, newest first."""
    levels = at_least(query.min_level)
    rows = connection.execute(
        "SELECT id, at_unix_ns, kind, level, subject, text FROM events"
        " WHERE at_unix_ns >= ?1 AND at_unix_ns <= ?2"
        " AND (?3 IS NULL OR substr(kind, 1, length(?3)) = ?3) AND (?4 IS NULL OR subject = ?4)"
        " AND instr(?5, level) > 0 ORDER BY id DESC LIMIT ?6",
        (
            _unix_ns(query.since, 0),
            _unix_ns(query.until, 1 << 62),
            query.kind,
            query.subject,
            " ".join(levels),
            query.limit,
        ),
    )
    return [_event(row) for row in rows]


def read_chunks(
    connection: sqlite3.Connection, window: Span, engines: set[tuple[str, int]]
) -> Iterator[StepChunk]:
    """Yield what engines reported of their steps in a span of time; no engines: all of them."""
    rows = connection.execute(
        "SELECT engine, epoch, chunk FROM steps"
        " WHERE until_ns BETWEEN ? AND ? AND since_ns <= ? ORDER BY id",
        (window.since_ns, window.until_ns + CHUNK_NS, window.until_ns),
    )
    for engine, epoch, blob in rows:
        if not engines or (engine, epoch) in engines:
            yield _chunk(zlib.decompress(blob))


def read_hops(connection: sqlite3.Connection, trace: bytes | None = None) -> Iterator[Hop]:
    """Yield the messages in a request's trace; None: in all of them."""
    where, values = ("", ()) if trace is None else ("WHERE trace = ?", (trace,))
    for (blob,) in connection.execute(f"SELECT hop FROM hops {where} ORDER BY id", values):  # noqa: S608 - constants
        yield _hop(blob)


def read_spans(connection: sqlite3.Connection, trace: bytes | None = None) -> Iterator[SpanData]:
    """Yield the spans of a trace that are not built from other facts; None: of all."""
    where, values = ("", ()) if trace is None else ("WHERE trace = ?", (trace,))
    for (blob,) in connection.execute(f"SELECT span FROM spans {where} ORDER BY id", values):  # noqa: S608 - constants
        yield _span(blob)


def read_own_trace(connection: sqlite3.Connection, name: str) -> list[SpanData]:
    """Return a trace of the appliance itself: by its id, or the last start of the engine `name`."""
    trace = bytes.fromhex(name) if _TRACE_ID.fullmatch(name) else _last_start(connection, name)
    return [] if trace is None else list(read_spans(connection, trace))


def _last_start(connection: sqlite3.Connection, engine_id: str) -> bytes | None:
    rows = connection.execute(
        "SELECT trace, span FROM spans WHERE name = ? ORDER BY id DESC LIMIT ?",
        (START, MAX_STARTS),
    )
    return next((trace for trace, blob in rows if _span(blob).process == engine_id), None)


def read_request(
    connection: sqlite3.Connection, key: str
) -> tuple[StoredRequest, RequestRecord] | None:
    """Return a request's row and its record."""
    row = connection.execute(
        f"SELECT {REQUEST_COLUMNS}, record FROM requests WHERE key = ?",  # noqa: S608 - constants
        (key,),
    ).fetchone()
    return None if row is None else (stored_row(row[:-1]), _record(row[-1]))


def stored_row(row: tuple[Any, ...]) -> StoredRequest:
    """Return a row as it is; its columns are `REQUEST_COLUMNS`."""
    return StoredRequest._make((*row[:_MEMBER_AT], CohortMember._make(row[_MEMBER_AT:])))


def engines_of(record: RequestRecord) -> set[tuple[str, int]]:
    """Return the engines that worked for a request, with their epochs."""
    return {(choice.engine_id, choice.engine_epoch) for choice in record.choices}


def processes_of(record: RequestRecord) -> set[str]:
    """Return whose records a request's trace is made of."""
    return {record.gateway, *(choice.engine_id for choice in record.choices)}


def lost_records(connection: sqlite3.Connection, window: Span, processes: set[str]) -> bool:
    """Whether records of these processes, or of all, were lost in that time; the hub is in all."""
    rows = connection.execute(
        "SELECT process FROM losses WHERE until_ns >= ? AND since_ns <= ?",
        (window.since_ns, window.until_ns),
    )
    return any(not processes or process in processes or process == HUB for (process,) in rows)


def _event(row: Iterable[Any]) -> JournalEvent:
    event_id, at_ns, kind, level, subject, text = row
    return JournalEvent(
        id=event_id,
        at=datetime.fromtimestamp(at_ns / 1e9, UTC),
        kind=kind,
        level=level,
        subject=subject,
        text=text,
    )


def _unix_ns(at: datetime | None, default: int) -> int:
    return default if at is None else min(int(at.timestamp() * 1_000_000) * 1000, 1 << 62)
