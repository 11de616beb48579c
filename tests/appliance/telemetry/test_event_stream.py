"""Readers of the event stream get a snapshot, every change, and learn what they missed."""

import json
from collections.abc import AsyncIterator

import pytest

from appliance.supervisor.admin.schemas import EngineRow
from appliance.telemetry.event_stream import RING, Event, EventStream
from appliance.telemetry.hub import Hub
from engine.clock import now_ns
from tests.appliance.telemetry.workload import MS, accepted, gateway_records, record

pytestmark = pytest.mark.anyio


def make(reader_limit: int = 512) -> EventStream:
    return EventStream(lambda: '"all"', first_id=100, reader_limit=reader_limit)


async def take(events: AsyncIterator[Event], count: int) -> list[Event]:
    return [await anext(events) for _ in range(count)]


async def test_a_new_reader_gets_a_snapshot_and_then_changes():
    stream = make()
    stream.publish("stats", "1")
    reader = stream.subscribe(None)
    assert await take(reader, 1) == [(101, "snapshot", '"all"')]
    stream.publish("engine", "2")
    stream.publish("stats", "3")

    assert await take(reader, 2) == [(102, "engine", "2"), (103, "stats", "3")]


async def test_a_reader_that_comes_back_gets_what_it_missed():
    stream = make()
    for number in range(5):
        stream.publish("stats", str(number))
    reader = stream.subscribe(103)

    assert await take(reader, 2) == [(104, "stats", "3"), (105, "stats", "4")]
    stream.publish("stats", "5")
    assert await take(reader, 1) == [(106, "stats", "5")]


@pytest.mark.parametrize("after_id", [7, 99_999], ids=["too long ago", "of another run"])
async def test_an_id_that_is_not_known_gets_a_snapshot(after_id: int):
    stream = make()
    for number in range(RING + 10):
        stream.publish("stats", str(number))
    ((_, name, _),) = await take(stream.subscribe(after_id), 1)

    assert name == "snapshot"


async def test_a_slow_reader_is_told_of_the_gap_and_starts_over():
    stream = make(reader_limit=2)
    slow, quick = stream.subscribe(None), stream.subscribe(None)
    await take(slow, 1)
    await take(quick, 1)
    for number in range(5):
        stream.publish("stats", str(number))
        await take(quick, 1)

    assert await take(slow, 2) == [(100, "gap", '{"missed":3}'), (105, "snapshot", '"all"')]
    stream.publish("stats", "5")
    assert await take(slow, 1) == [(106, "stats", "5")]
    assert await take(quick, 1) == [(106, "stats", "5")]


async def test_the_end_of_the_stream_ends_its_readers():
    stream = make()
    reader = stream.subscribe(None)
    await take(reader, 1)
    stream.close()

    assert [event async for event in reader] == []


def engine_row(hub: Hub, **changes: object) -> EngineRow:
    fields: dict = {
        "id": "e0",
        "state": "ready",
        "epoch": 1,
        "model": "tiny",
        "device": "cpu",
        "since": hub.parts.clock.at(0),
    }
    return EngineRow(**(fields | changes))


async def test_the_hub_streams_engines_requests_and_events(hub: Hub):
    reader = hub.subscribe(None)
    ((_, name, text),) = await take(reader, 1)
    assert name == "snapshot"
    assert json.loads(text)["requests"] == []

    request = record(now_ns())
    hub.publish_engine(engine_row(hub))
    hub.publish_engine(engine_row(hub, running=5))  # a figure: waits for the second
    hub.publish_engine(engine_row(hub, state="asleep"))
    hub.gateway_records(gateway_records(accepted=(accepted(request),)))
    hub.gateway_records(gateway_records(finished=(request,)))
    hub.journal("engine.asleep", "info", "e0", "level 1")

    events = [(name, json.loads(text)) for _, name, text in await take(reader, 5)]
    assert [name for name, _ in events] == ["engine", "engine", "request", "request", "event"]
    assert [row["state"] for _, row in events[:4]] == ["ready", "asleep", "queued", "finished"]
    assert hub.parts.journal.latest(5)[0].kind == "engine.asleep"


async def test_the_statistics_are_of_the_last_minute(hub: Hub):
    start_ns = now_ns()
    for number in range(10):
        hub.gateway_records(gateway_records(finished=(record(start_ns + number * MS),)))

    stats = hub.stats()

    assert stats.ttft_ms.p50 == stats.ttft_ms.p99 == 10
    assert stats.queue_ms.p50 == 2
    assert stats.e2e_ms.p50 == 20
    assert stats.tpot_ms.p50 == 1
    assert stats.error_ratio == 0
    assert stats.requests_per_s > 0
