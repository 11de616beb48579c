"""The telemetry's switches while everything runs, and what the hub says of its own losses."""

import sqlite3
from pathlib import Path

import pytest

from appliance.supervisor.admin.ports import EventQuery, RefusedError, TraceQuery
from appliance.supervisor.admin.schemas import ChangeTelemetry
from appliance.telemetry import names
from appliance.telemetry.hub import Hub, HubConfig
from appliance.telemetry.records import LiveTokens
from appliance.telemetry.span_data import SpanData
from engine.clock import now_ns
from engine.wire.header import TraceContext, new_context
from engine.wire.messages import EngineRecords
from tests.appliance.telemetry.test_hub import empty_accounts
from tests.appliance.telemetry.workload import (
    MS,
    Wire,
    accepted,
    gateway_accounts,
    gateway_records,
    play_call,
    play_request,
    record,
)

pytestmark = pytest.mark.anyio


def change(**named: object) -> ChangeTelemetry:
    return ChangeTelemetry.model_validate(named)


async def test_a_change_is_in_force_and_in_the_journal_at_once(hub: Hub):
    told: list[tuple[bool, bool]] = []
    hub.on_recording = lambda recording, content: told.append((recording, content))

    await hub.change_telemetry(change(trace_ratio=0.5), "k1")
    assert told == []
    settings = await hub.change_telemetry(change(recording=False, content=True), "k1")
    await hub.change_telemetry(change(recording=False), "k1")

    assert (settings.recording, settings.content, settings.trace_ratio) == (False, True, 0.5)
    assert hub.settings.trace_ratio == 0.5
    assert told == [(False, True)]
    texts = [event.text for event in await hub.events(EventQuery(kind="telemetry."))]
    assert texts == ["recording=False, content=True by k1", "trace_ratio=0.5 by k1"]


async def test_export_needs_a_collector(hub: Hub):
    with pytest.raises(RefusedError, match="no collector"):
        await hub.change_telemetry(change(export=True), "k1")
    assert (await hub.telemetry()).collector is None


def exporting(hub: Hub) -> list[SpanData]:
    """Let a hub export into a list."""
    spans: list[SpanData] = []
    hub.parts._export = spans.extend
    hub.parts.assembly._export = spans.extend
    hub.parts.assembly.gate._export = spans.extend
    hub.parts.assembly.set_exporting(True)
    return spans


async def test_kept_traces_are_counted_by_reason_and_carry_it(hub: Hub):
    exported = exporting(hub)
    play_request(hub, Wire(), record(now_ns()), steps=2)
    hub.parts.assembly.finish(now_ns())

    assert hub.parts.own.value(names.TRACES_KEPT, ("ratio",)) == 1
    root = next(span for span in exported if span.kind == "server")
    assert root.attributes[names.SAMPLING_REASON] == "ratio"
    steps = [span for span in exported if span.name == "engine.step"]
    assert [len(span.links) for span in steps] == [1, 1]


async def test_the_exported_and_the_local_spans_are_the_same(hub: Hub):
    exported = exporting(hub)
    request = record(now_ns())
    play_request(hub, Wire(), request)

    local = await hub.trace(request.request_id)

    sent = {span.span_id: span for span in exported}
    for span in local.spans:
        assert sent[span.span_id].name == span.name
        assert hub.parts.clock.unix_ns(sent[span.span_id].start_ns) == span.start_ns
        if not span.linked:
            assert sent[span.span_id].parent_id == span.parent_id


async def test_switching_the_export_off_stops_it_and_keeps_the_local_traces(hub: Hub):
    exported = exporting(hub)
    hub.parts.assembly.set_exporting(False)
    request = record(now_ns())
    play_request(hub, Wire(), request)

    assert exported == []
    assert hub.parts.own.value(names.TRACES_KEPT, ("ratio",)) == 0
    assert (await hub.trace(request.request_id)).complete


async def test_without_recording_rows_live_and_end_and_nothing_is_called_lost(
    hub: Hub, tmp_path: Path
):
    await hub.change_telemetry(change(recording=False), "k1")
    request = record(now_ns() - 100 * MS)
    hub.gateway_records(gateway_records(accepted=(accepted(request),)))
    play_call(hub, Wire(), "Ping", new_context(), now_ns())
    running = LiveTokens(request.request_id, 1, "decode")
    hub.gateway_accounts(gateway_accounts(empty_accounts(), live=(running,)))
    assert [row.state for row in hub.requests("live", 9)] == ["decode"]
    hub.gateway_accounts(gateway_accounts(empty_accounts()))

    assert hub.requests("live", 9) == []
    await hub.close()
    with sqlite3.connect(tmp_path / "traces.sqlite") as db:
        (failed,) = db.execute("SELECT count(*) FROM hops").fetchone()
    assert failed == 0


async def test_what_ran_while_recording_came_back_is_not_called_complete(hub: Hub):
    await hub.change_telemetry(change(recording=False), "k1")
    await hub.change_telemetry(change(recording=True), "k1")
    request = record(now_ns())
    play_request(hub, Wire(), request)

    assert not (await hub.trace(request.request_id)).complete


async def test_a_trace_during_which_an_engine_lost_records_is_not_complete(hub: Hub):
    request = record(now_ns() - 50 * MS)
    play_request(hub, Wire(), request)
    assert (await hub.trace(request.request_id)).complete

    later = record(now_ns())
    play_request(hub, Wire(), later)
    hub.engine_message("e0", 1, EngineRecords(hops=(), steps=(), dropped=4))

    assert not (await hub.trace(later.request_id)).complete
    evidence = await hub.parts.store.evidence(later.request_id.removeprefix("req-"))
    assert evidence is not None
    assert not evidence.complete


async def test_a_trace_during_which_its_gateway_lost_records_is_not_complete(hub: Hub):
    request, other = record(now_ns()), record(now_ns(), gateway="gateway-1")
    for one in (request, other):
        play_request(hub, Wire(), one)
    hub.gateway_records(gateway_records(dropped=1), "gateway-0")

    assert not (await hub.trace(request.request_id)).complete
    evidence = await hub.parts.store.evidence(other.request_id.removeprefix("req-"))
    assert evidence is not None
    assert evidence.complete


async def test_the_list_says_who_asked_where_it_ran_and_how_it_went(hub: Hub):
    play_request(hub, Wire(), record(now_ns()))

    (row,) = await hub.traces(TraceQuery())
    assert (row.engine, row.key_id, row.model) == ("e0", "k1", "tiny")
    assert row.headline.startswith("TTFT 10 ms")


async def test_a_killed_engine_takes_what_it_had_not_told_with_it(hub: Hub):
    request = record(now_ns())
    play_request(hub, Wire(), request)
    hub.engine_died("e0", 1, "killed by signal 9")

    assert not (await hub.trace(request.request_id)).complete


async def test_a_full_trace_store_is_said_once_and_counted(tmp_path: Path):
    blocker = tmp_path / "file"
    blocker.touch()
    hub = Hub(HubConfig(trace_db_path=blocker / "traces.sqlite"))
    for _ in range(2):
        hub.gateway_records(gateway_records(finished=(record(now_ns()),)))
        hub.parts.store.flush()
        with pytest.raises(sqlite3.OperationalError, match="File exists"):
            await hub.traces(TraceQuery())
        hub._tick()

    told = [event.kind for event in await hub.events(EventQuery())]
    assert told == ["trace_store.failing"]
    totals = hub.parts.totals()
    series = totals.values[names.RECORDS_DROPPED.name]
    assert series["supervisor", "trace_store"] >= 2
    settings = await hub.telemetry()
    assert (settings.stored_spans, settings.oldest_at) == (None, None)
    assert any(row.stage == "trace_store" and row.dropped for row in settings.drops)
    await hub.close()


async def test_an_event_that_the_file_could_not_take_is_told_from_memory(tmp_path: Path):
    path = tmp_path / "traces.sqlite3"
    hub = Hub(HubConfig(trace_db_path=path))
    hub.journal("first", "info", "e0", "in the file")
    await hub.events(EventQuery())
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    hub.journal("second", "error", "e0", "while the file was locked")
    hub.parts.store.flush()
    await hub.events(EventQuery())
    holder.execute("ROLLBACK")
    holder.close()

    hub.journal("third", "info", "e0", "in the file again")

    assert [event.kind for event in await hub.events(EventQuery())] == ["third", "second", "first"]
    assert [event.kind for event in await hub.events(EventQuery(limit=2))] == ["third", "second"]
    await hub.close()


async def test_recorded_texts_are_shown_only_to_who_may_see_them(hub: Hub):
    request = record(now_ns(), input_content='[{"role":"user"}]', output_content="[]")
    play_request(hub, Wire(), request)

    shown = await hub.trace(request.request_id, content=True)
    hidden = await hub.trace(request.request_id)

    chat = next(span for span in shown.spans if span.name == "chat tiny")
    assert chat.attributes["gen_ai.input.messages"] == '[{"role":"user"}]'
    assert "gen_ai.output.messages" in chat.attributes
    assert not any(name in span.attributes for span in hidden.spans for name in names.CONTENT)


async def test_a_context_of_the_caller_is_kept_whatever_the_ratio(hub: Hub):
    exported = exporting(hub)
    await hub.change_telemetry(change(trace_ratio=0.0, slowest_per_minute=0), "k1")
    caller = TraceContext(new_context().trace_id, new_context().span_id, 1)
    mine = record(
        now_ns(), trace_id=caller.trace_id, parent_span_id=caller.span_id, flags=caller.flags
    )
    hub.parts.assembly.set_exporting(True)
    play_request(hub, Wire(), mine)
    play_request(hub, Wire(), record(now_ns()))

    assert {span.trace_id for span in exported if span.kind == "server"} == {caller.trace_id}
