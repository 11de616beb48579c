"""Reads what explanations are made from: a request's cohort, its steps, a moment. Synchronous."""

import sqlite3
from datetime import UTC, datetime
from typing import Final

from appliance.supervisor.admin.ports import EventQuery
from appliance.telemetry.evidence import (
    CohortMember,
    Evidence,
    MomentFacts,
    MomentRequest,
    StepFacts,
)
from appliance.telemetry.trace_db import REQUEST_COLUMNS
from appliance.telemetry.trace_facts import StoredRequest, step_facts
from appliance.telemetry.trace_queries import (
    Span,
    engines_of,
    lost_records,
    processes_of,
    read_chunks,
    read_events,
    read_request,
    stored_row,
)

MAX_COHORT: Final = 1000
MAX_STEPS: Final = 20_000
MAX_MOMENT_REQUESTS: Final = 5000
MAX_MOMENT_STEPS: Final = 50_000
MAX_MOMENT_EVENTS: Final = 500
HOUR_NS: Final = 3600 * 10**9
_MEMBER: Final = REQUEST_COLUMNS.split("offset_ns, ", 1)[1]


def read_evidence(connection: sqlite3.Connection, key: str) -> Evidence | None:
    """Return what an explanation of a request is made from."""
    found = read_request(connection, key)
    if found is None:
        return None
    request, record = found
    ended_ns, offset_ns = request.member.ended_unix_ns, request.offset_ns
    since_ns = record.received_ns if record.tokenized_ns is None else record.tokenized_ns
    window = Span(since_ns + offset_ns, ended_ns)
    whole = Span(request.received_unix_ns, ended_ns)
    cohort = connection.execute(
        f"SELECT {_MEMBER} FROM requests WHERE ended_unix_ns BETWEEN ? AND ?"  # noqa: S608 - constants
        " AND model IS ? AND route = ? AND key != ? ORDER BY ended_unix_ns DESC LIMIT ?",
        (ended_ns - HOUR_NS, ended_ns, request.model, request.route, key, MAX_COHORT),
    )
    return Evidence(
        record=record,
        cohort=[CohortMember(*row) for row in cohort],
        steps=_steps(connection, window, engines_of(record), MAX_STEPS),
        events=_events_inside(connection, whole, offset_ns),
        complete=not lost_records(connection, whole, processes_of(record)),
    )


def read_moment(connection: sqlite3.Connection, window: Span) -> MomentFacts:
    """Return what is known about a span of time."""
    rows = connection.execute(
        f"SELECT {REQUEST_COLUMNS} FROM requests"  # noqa: S608 - constants
        " WHERE ended_unix_ns >= ? AND received_unix_ns <= ?"
        " ORDER BY received_unix_ns DESC LIMIT ?",
        (window.since_ns, window.until_ns, MAX_MOMENT_REQUESTS),
    )
    hour = connection.execute(
        "SELECT ttft_ms FROM requests WHERE ended_unix_ns BETWEEN ? AND ?"
        " AND ttft_ms IS NOT NULL ORDER BY ended_unix_ns DESC LIMIT ?",
        (window.since_ns - HOUR_NS, window.since_ns, MAX_MOMENT_REQUESTS),
    )
    offset = connection.execute(
        "SELECT offset_ns FROM steps WHERE until_ns >= ? ORDER BY until_ns LIMIT 1",
        (window.since_ns,),
    ).fetchone()
    query = EventQuery(
        limit=MAX_MOMENT_EVENTS,
        since=datetime.fromtimestamp(window.since_ns / 1e9, UTC),
        until=datetime.fromtimestamp(window.until_ns / 1e9, UTC),
    )
    return MomentFacts(
        since_unix_ns=window.since_ns,
        until_unix_ns=window.until_ns,
        offset_unix_ns=0 if offset is None else offset[0],
        requests=[_moment_request(stored_row(row)) for row in rows],
        steps=_steps(connection, window, set(), MAX_MOMENT_STEPS),
        events=read_events(connection, query),
        hour_ttft_ms=[value for (value,) in hour],
        complete=not lost_records(connection, window, set()),
    )


def _steps(
    connection: sqlite3.Connection, window: Span, engines: set[tuple[str, int]], limit: int
) -> list[StepFacts]:
    found: list[StepFacts] = []
    offset = connection.execute(
        "SELECT offset_ns FROM steps WHERE until_ns >= ? ORDER BY until_ns LIMIT 1",
        (window.since_ns,),
    ).fetchone()
    if offset is None:
        return found
    since_ns, until_ns = window.since_ns - offset[0], window.until_ns - offset[0]
    for chunk in read_chunks(connection, window, engines):
        inside = (s for s in chunk.steps if s.end_ns >= since_ns and s.start_ns <= until_ns)
        found.extend(step_facts(step) for step in inside)
        if len(found) >= limit:
            break
    found.sort(key=lambda step: step.start_ns)
    return found[:limit]


def _events_inside(
    connection: sqlite3.Connection, window: Span, offset_ns: int
) -> list[tuple[int, str, str, str]]:
    rows = connection.execute(
        "SELECT at_unix_ns, kind, subject, text FROM events WHERE at_unix_ns BETWEEN ? AND ?"
        " ORDER BY id LIMIT ?",
        (window.since_ns, window.until_ns, MAX_COHORT),
    )
    return [(at_ns - offset_ns, kind, subject, text) for at_ns, kind, subject, text in rows]


def _moment_request(request: StoredRequest) -> MomentRequest:
    return MomentRequest(
        request.member, request.model, request.key_id, request.engine, request.headline
    )
