"""The trace store's file: private, bounded, replaced when it cannot be read."""

import sqlite3
import stat
from pathlib import Path

import pytest

from appliance.telemetry.span_data import SpanData
from appliance.telemetry.trace_db import StoredRequest, TraceDb
from engine.wire.header import new_context, new_span_id, new_trace_id
from engine.wire.hops import HopLink

HOUR_NS = 3600 * 10**9


def open_db(path: Path, max_bytes: int = 1 << 30, max_age_ns: int = HOUR_NS) -> TraceDb:
    return TraceDb(path / "traces.sqlite", max_bytes, max_age_ns, offset_ns=0)


def span(at_ns: int, links: tuple[HopLink, ...] = (), trace_id: str | None = None) -> SpanData:
    return SpanData(
        trace_id=trace_id or new_trace_id(),
        span_id=new_span_id(),
        parent_id=None,
        name="send EngineOutputs",
        kind="producer",
        process="e0",
        start_ns=at_ns,
        end_ns=at_ns + 1,
        attributes={"padding": "x" * 200},
        links=links,
    )


def request(key: str, at_ns: int, trace_id: str) -> StoredRequest:
    return StoredRequest(
        key, at_ns, trace_id, new_span_id(), "finished", "tiny", 1.0, None, "POST", "-", b"{}"
    )


def test_the_file_is_private(tmp_path: Path):
    open_db(tmp_path).close()

    assert stat.S_IMODE((tmp_path / "traces.sqlite").stat().st_mode) == 0o600


def test_what_is_older_than_the_bound_goes(tmp_path: Path):
    db = open_db(tmp_path)
    old, young = span(1), span(2 * HOUR_NS)
    db.insert([old], [request("old", 1, old.trace_id)])
    db.insert([young], [request("young", 2 * HOUR_NS, young.trace_id)])

    db.retain(now_unix_ns=2 * HOUR_NS + 1)

    assert db.spans(old.trace_id) == []
    assert db.request("old") is None
    assert len(db.spans(young.trace_id)) == 1
    assert db.request("young") is not None
    db.close()


def test_the_file_stays_below_its_size(tmp_path: Path):
    limit = 1 << 20
    db = open_db(tmp_path, max_bytes=limit)
    linked = HopLink("0" * 24, new_context())
    spans = [span(at_ns, links=(linked,)) for at_ns in range(6000)]
    for start in range(0, 6000, 500):
        db.insert(spans[start : start + 500], [])
        db.retain(now_unix_ns=6000)
        assert db.used_bytes() <= limit

    assert db.spans(spans[0].trace_id) == []
    assert len(db.spans(spans[-1].trace_id)) == 1
    kept = len(db.linked("0" * 24))
    assert 0 < kept < 6000
    assert (tmp_path / "traces.sqlite").stat().st_size <= 2 * limit
    db.close()


def test_messages_that_served_a_request_are_found_with_their_process_spans(tmp_path: Path):
    db = open_db(tmp_path)
    key = "a" * 24
    send = span(1, links=(HopLink(f"req-{key}-1", new_context()),))
    process = span(2, trace_id=send.trace_id)
    process.kind, process.parent_id = "consumer", send.span_id
    db.insert([send, process, span(3)], [])

    found = {one.span_id: one.suffix for one in db.linked(key)}

    assert found == {send.span_id: "-1", process.span_id: "-1"}
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
    db.insert([kept], [])

    assert [row.span_id for row in db.spans(kept.trace_id)] == [kept.span_id]
    db.close()


def test_what_was_written_is_there_after_a_restart(tmp_path: Path):
    first = span(1)
    db = open_db(tmp_path)
    db.insert([first], [])
    db.close()
    db = open_db(tmp_path)
    db.insert([span(2)], [])

    assert [one.span_id for one in db.spans(first.trace_id)] == [first.span_id]
    db.close()


@pytest.mark.anyio
async def test_a_file_that_cannot_be_written_costs_spans_and_nothing_else(tmp_path: Path):
    from appliance.telemetry.trace_store import TraceStore
    from appliance.telemetry.wall_clock import WallClock

    blocker = tmp_path / "not-a-directory"
    blocker.touch()
    store = TraceStore(blocker / "traces.sqlite", 1 << 20, 3600, WallClock())
    store.add_spans([span(1)])
    store.flush()
    await store.close()

    assert store.dropped == 1


@pytest.mark.anyio
async def test_a_flood_stays_below_the_size_at_once(tmp_path: Path):
    from appliance.telemetry.trace_store import TraceStore
    from appliance.telemetry.wall_clock import WallClock

    limit = 1 << 20
    store = TraceStore(tmp_path / "traces.sqlite", limit, 3600, WallClock())
    for start in range(0, 8000, 500):
        store.add_spans([span(at_ns) for at_ns in range(start, start + 500)])
        used = await store._ask(lambda db: db.used_bytes())
        assert used <= limit
    await store.close()

    assert store.dropped == 0
    assert (
        tmp_path / "traces.sqlite"
    ).stat().st_size <= 1.5 * limit  # and a batch, before it is cut
