"""The trace store's file: private, bounded, replaced when it cannot be read."""

import sqlite3
import stat
from datetime import UTC, datetime
from pathlib import Path

import pytest

from appliance.supervisor.admin.ports import EventQuery, TraceQuery
from appliance.supervisor.admin.schemas import JournalEvent
from appliance.telemetry.evidence_queries import read_evidence, read_moment
from appliance.telemetry.hop_join import Hop
from appliance.telemetry.records import Outcome, RequestRecord
from appliance.telemetry.span_data import SpanData
from appliance.telemetry.trace_db import TraceDb
from appliance.telemetry.trace_facts import Facts, Loss
from appliance.telemetry.trace_queries import (
    Span,
    read_events,
    read_rows,
    read_spans,
    read_trace,
)
from appliance.telemetry.trace_store import TraceStore
from appliance.telemetry.wall_clock import WallClock
from engine.wire.header import TraceContext, new_context, new_span_id, new_trace_id
from engine.wire.hops import HopLink, StepRecord
from tests.appliance.telemetry.workload import MS, Wire, choice, record, step_record, timeline

HOUR_NS = 3600 * 10**9


def open_db(path: Path, max_bytes: int = 1 << 30, max_age_ns: int = HOUR_NS) -> TraceDb:
    return TraceDb(path / "traces.sqlite", max_bytes, max_age_ns, offset_ns=0)


def span(at_ns: int, trace_id: str | None = None) -> SpanData:
    return SpanData(
        trace_id=trace_id or new_trace_id(),
        span_id=new_span_id(),
        parent_id=None,
        name="engine.start",
        kind="internal",
        process="e0",
        start_ns=at_ns,
        end_ns=at_ns + 1,
        attributes={"padding": new_trace_id() * 8},
    )


def served(request: RequestRecord, steps: int = 3) -> Facts:
    """A request and the steps that made its tokens."""
    wire, facts = Wire(), Facts()
    engine_request_id = request.choices[0].engine_request_id
    link = HopLink(engine_request_id, TraceContext(request.trace_id, new_span_id(), 0))
    for step in range(steps):
        context, at_ns = new_context(), request.received_ns + (9 + step) * MS
        halves = wire.message("EngineOutputs", "e0", "gateway-0", context, at_ns, links=(link,))
        facts.steps.append(step_record(context, step, at_ns))
        facts.outputs.append(Hop(*halves))
    facts.requests.append((request, "-"))
    return facts


def asked(at_ns: int, **changes: object) -> RequestRecord:
    """A request whose engine requests are named after it."""
    made = record(at_ns, **changes)
    one = choice(0, timeline(at_ns + 4 * MS), engine_request_id=f"{made.request_id}-0")
    return record(at_ns, **({"request_id": made.request_id, "choices": (one,)} | changes))


def key_of(request: RequestRecord) -> str:
    return request.request_id.removeprefix("req-")


def test_the_file_is_private(tmp_path: Path):
    open_db(tmp_path).close()

    assert stat.S_IMODE((tmp_path / "traces.sqlite").stat().st_mode) == 0o600


def test_a_request_is_read_back_with_the_messages_that_served_it(tmp_path: Path):
    db = open_db(tmp_path)
    mine, other = asked(1000 * MS), asked(1001 * MS)
    db.insert(served(mine))
    db.insert(served(other))

    found = read_trace(db.connection, key_of(mine))

    assert found is not None
    assert found.record == mine
    assert [hop.sent.links[0].request_id for hop in found.outputs] == [
        mine.choices[0].engine_request_id
    ] * 3
    assert found.is_alone
    assert not found.lost_records
    assert read_trace(db.connection, "f" * 24) is None
    db.close()


def test_what_is_older_than_the_bound_goes(tmp_path: Path):
    db = open_db(tmp_path)
    old, young = asked(MS), asked(2 * HOUR_NS)
    for one in (old, young):
        facts = served(one)
        facts.spans.append(span(one.received_ns, one.trace_id))
        db.insert(facts)

    db.retain(now_unix_ns=2 * HOUR_NS + 1)

    assert read_trace(db.connection, key_of(old)) is None
    kept = read_trace(db.connection, key_of(young))
    assert kept is not None
    assert len(kept.outputs) == 3
    assert [one.trace_id for one in read_spans(db.connection)] == [young.trace_id]
    db.close()


def test_the_file_stays_below_its_size(tmp_path: Path):
    limit = 1 << 20
    db = open_db(tmp_path, max_bytes=limit)
    first = asked(0)
    db.insert(served(first))
    for start in range(0, 12_000, 500):
        db.insert(Facts(spans=[span(MS * at) for at in range(start, start + 500)]))
        db.retain(now_unix_ns=MS * 12_000)
        assert db.used_bytes() <= limit
    last = asked(MS * 12_000)
    db.insert(served(last))

    assert read_trace(db.connection, key_of(first)) is None
    assert read_trace(db.connection, key_of(last)) is not None
    assert 0 < len(list(read_spans(db.connection))) < 12_000
    assert (tmp_path / "traces.sqlite").stat().st_size <= 2 * limit
    db.close()


def test_a_message_of_a_step_costs_less_than_250_bytes(tmp_path: Path):
    db = open_db(tmp_path)
    empty = db.used_bytes()
    request = asked(1000 * MS)
    for _ in range(100):  # one flush each: ten steps in half a second
        facts = served(request, steps=10)
        facts.requests.clear()
        db.insert(facts)

    assert (db.used_bytes() - empty) / 1000 < 250
    db.close()


def test_a_file_of_another_version_or_a_damaged_one_is_replaced(tmp_path: Path):
    path = tmp_path / "traces.sqlite"
    open_db(tmp_path).close()
    with sqlite3.connect(path) as other:
        other.execute("PRAGMA user_version = 99")
    other.close()
    open_db(tmp_path).close()
    path.write_bytes(b"not a database, but long enough to be taken for one" * 100)
    db = open_db(tmp_path)

    kept = span(1)
    db.insert(Facts(spans=[kept]))

    assert [row.span_id for row in read_spans(db.connection)] == [kept.span_id]
    db.close()


def test_what_was_written_is_there_after_a_restart(tmp_path: Path):
    first = asked(MS)
    db = open_db(tmp_path)
    db.insert(served(first))
    db.close()
    db = open_db(tmp_path)
    db.insert(served(asked(2 * MS)))

    found = read_trace(db.connection, key_of(first))
    assert found is not None
    assert len(found.outputs) == 3
    db.close()


def test_rows_are_filtered_by_everything_that_one_may_ask_for(tmp_path: Path):
    db = open_db(tmp_path)
    slow = asked(1000 * MS, ended_ns=9000 * MS, key_id="k2")
    quick = asked(2000 * MS)
    failed = asked(3000 * MS, outcome=Outcome.FAILED, model="other")
    for one in (slow, quick, failed):
        db.insert(served(one))

    def found(**query: object) -> list[str]:
        rows = read_rows(db.connection, TraceQuery(**query))
        return [row.member.request for row in rows]

    every = [failed.request_id, quick.request_id, slow.request_id]
    assert found() == every
    assert found(limit=1) == every[:1]
    assert found(outcome="failed") == [failed.request_id]
    assert found(model="other") == [failed.request_id]
    assert found(key_id="k2") == [slow.request_id]
    assert found(engine="e0") == every
    assert found(engine="e1") == []
    assert found(trace_id=quick.trace_id) == [quick.request_id]
    assert found(min_ms=100) == [slow.request_id]
    assert found(slowest_first=True)[0] == slow.request_id
    between = {"since": datetime.fromtimestamp(1.5, UTC), "until": datetime.fromtimestamp(2.5, UTC)}
    assert found(**between) == [quick.request_id]
    db.close()


def test_the_journal_survives_and_is_filtered(tmp_path: Path):
    events = [
        JournalEvent(
            id=number,
            at=datetime.fromtimestamp(number, UTC),
            kind=kind,
            level=level,
            subject=subject,
            text="-",
        )
        for number, (kind, level, subject) in enumerate(
            [
                ("engine.ready", "info", "e0"),
                ("engine.died", "warning", "e1"),
                ("operation.failed", "error", "e0"),
            ]
        )
    ]
    db = open_db(tmp_path)
    db.insert(Facts(events=events))
    db.close()
    db = open_db(tmp_path)

    def found(**query: object) -> list[int]:
        return [event.id for event in read_events(db.connection, EventQuery(**query))]

    assert found() == [2, 1, 0]
    assert found(limit=2) == [2, 1]
    assert found(min_level="warning") == [2, 1]
    assert found(kind="engine.") == [1, 0]
    assert found(subject="e0") == [2, 0]
    assert found(since=events[1].at) == [2, 1]
    assert found(until=events[1].at) == [1, 0]
    assert read_events(db.connection, EventQuery())[2] == events[0]
    db.close()


def test_evidence_holds_the_cohort_the_steps_and_the_events(tmp_path: Path):
    db = open_db(tmp_path)
    cohort = [asked(at * 100 * MS) for at in range(1, 4)]
    strange = asked(350 * MS, model="other")
    mine = asked(400 * MS)
    for one in (*cohort, strange, mine):
        db.insert(served(one))
    at = datetime.fromtimestamp(0.410, UTC)
    event = JournalEvent(id=1, at=at, kind="engine.x", level="info", subject="e0", text="-")
    db.insert(Facts(events=[event]))

    evidence = read_evidence(db.connection, key_of(mine))

    assert evidence is not None
    assert evidence.record == mine
    newest_first = [one.request_id for one in reversed(cohort)]
    assert [member.request for member in evidence.cohort] == newest_first
    first = evidence.cohort[0]
    assert (first.duration_ms, first.front_ms, first.queue_ms, first.prefill_ms) == (20, 3, 2, 3)
    assert [step.start_ns for step in evidence.steps] == sorted(
        step.start_ns for step in served(mine).steps
    )
    assert evidence.events == [(410 * MS, "engine.x", "e0", "-")]
    assert evidence.complete
    db.close()


def test_a_time_whose_records_were_lost_does_not_pass_for_complete(tmp_path: Path):
    db = open_db(tmp_path)
    before, inside, elsewhere = asked(100 * MS), asked(200 * MS), asked(200 * MS)
    elsewhere = asked(200 * MS, choices=(choice(0, timeline(204 * MS), engine_id="e1"),))
    for one in (before, inside, elsewhere):
        db.insert(served(one))
    db.insert(Facts(losses=[Loss("e0", "engine", 210 * MS, 215 * MS, 3)]))

    def is_whole(request: RequestRecord) -> bool:
        evidence = read_evidence(db.connection, key_of(request))
        trace = read_trace(db.connection, key_of(request))
        assert evidence is not None
        assert trace is not None
        assert evidence.complete is not trace.lost_records
        return evidence.complete

    assert is_whole(before)
    assert not is_whole(inside)
    assert is_whole(elsewhere)
    assert not read_moment(db.connection, Span(205 * MS, 220 * MS)).complete
    db.close()


def test_a_moment_shows_what_overlaps_it(tmp_path: Path):
    db = open_db(tmp_path)
    before, inside, after = asked(100 * MS), asked(200 * MS), asked(300 * MS)
    for one in (before, inside, after):
        db.insert(served(one))

    facts = read_moment(db.connection, Span(205 * MS, 215 * MS))

    assert [row.member.request for row in facts.requests] == [inside.request_id]
    assert all(step.end_ns >= 205 * MS and step.start_ns <= 215 * MS for step in facts.steps)
    assert len(facts.steps) == 3
    assert list(facts.hour_ttft_ms) == [10.0]
    assert facts.complete
    db.close()


@pytest.mark.anyio
async def test_a_file_that_cannot_be_written_costs_facts_and_nothing_else(tmp_path: Path):
    blocker = tmp_path / "not-a-directory"
    blocker.touch()
    store = TraceStore(blocker / "traces.sqlite", 1 << 20, 3600, WallClock())
    store.add_spans([span(1)])
    store.flush()
    await store.close()

    assert store.dropped == 1
    assert store.failing is not None


@pytest.mark.anyio
async def test_a_locked_file_costs_facts_until_it_is_free_again(tmp_path: Path):
    path = tmp_path / "traces.sqlite"
    store = TraceStore(path, 1 << 20, 3600, WallClock())
    await store.figures()
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    store.add_spans([span(1)])
    store.flush()
    store.add_spans([span(2)])
    await store.events(EventQuery())  # after the batch that failed
    assert (store.dropped, store.depth) == (2, 0)
    assert store.failing is not None
    holder.execute("ROLLBACK")
    holder.close()

    store.add_spans([span(3)])
    figures = await store.figures()

    assert (figures.facts, store.failing) == (1, None)
    await store.close()


@pytest.mark.anyio
async def test_a_deleted_file_is_made_again(tmp_path: Path):
    store = TraceStore(tmp_path / "traces.sqlite", 1 << 20, 3600, WallClock())
    for _ in range(2):
        store.add_request(asked(1), "headline")
        assert len(await store.requests(TraceQuery())) == 1
        for suffix in ("", "-wal", "-shm"):
            store.path.with_name(store.path.name + suffix).unlink()
    await store.close()


@pytest.mark.anyio
async def test_a_flood_stays_below_the_size_at_once(tmp_path: Path):
    limit = 1 << 20
    store = TraceStore(tmp_path / "traces.sqlite", limit, 3600, WallClock())
    for start in range(0, 8000, 500):
        store.add_spans([span(at_ns) for at_ns in range(start, start + 500)])
        assert (await store.figures()).used_bytes <= limit
    await store.close()

    assert store.dropped == 0
    assert (
        tmp_path / "traces.sqlite"
    ).stat().st_size <= 1.5 * limit  # and a batch, before it is cut


@pytest.mark.anyio
async def test_a_thread_that_is_too_far_behind_costs_facts(tmp_path: Path):
    store = TraceStore(tmp_path / "traces.sqlite", 1 << 20, 3600, WallClock())
    context = new_context()
    step: StepRecord = step_record(context, 1, MS)
    for _ in range(50_010):
        store.add_step(step)

    assert (store.depth, store.dropped) == (50_000, 10)
    await store.close()
