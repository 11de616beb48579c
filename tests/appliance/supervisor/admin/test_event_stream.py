"""The event stream over a real server: frames, resuming, pings and readers that leave."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest
import uvicorn

from appliance.supervisor.admin.event_stream import EventStream, frame, last_event_id
from tests.appliance.supervisor.admin.conftest import Plane

pytestmark = pytest.mark.anyio

STREAM = "/admin/v1/events/stream"


@asynccontextmanager
async def serving(plane: Plane) -> AsyncIterator[httpx.AsyncClient]:
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(plane.tcp, log_level="error", lifespan="off", proxy_headers=False)
    server = uvicorn.Server(config)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(server.serve(sockets=[listener]))
        base_url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        headers = {"authorization": "Bearer viewer-secret"}
        async with httpx.AsyncClient(base_url=base_url, headers=headers) as reader:
            yield reader
        plane.hub.feed.put_nowait(None)
        server.should_exit = True
    listener.close()


async def next_lines(lines: AsyncIterator[str], count: int) -> list[str]:
    return [await anext(lines) for _ in range(count)]


async def test_events_arrive_as_they_happen(plane: Plane):
    async with serving(plane) as reader, reader.stream("GET", STREAM) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers["x-accel-buffering"] == "no"
        assert answer.headers["cache-control"] == "no-store"
        lines = answer.aiter_lines()

        plane.hub.feed.put_nowait((7, "snapshot", '{"a":1}'))
        assert await next_lines(lines, 4) == ["id: 7", "event: snapshot", 'data: {"a":1}', ""]
        plane.hub.feed.put_nowait((8, "engine", "{}"))
        assert await next_lines(lines, 4) == ["id: 8", "event: engine", "data: {}", ""]

        plane.hub.feed.put_nowait(None)
        with pytest.raises(StopAsyncIteration):
            await anext(lines)


async def test_a_reader_goes_on_after_the_last_id_it_saw(plane: Plane):
    async with serving(plane) as reader:
        for header in ("41", "junk", "-1", ""):
            plane.hub.feed.put_nowait(None)
            await reader.get(STREAM, headers={"last-event-id": header})

    assert plane.hub.after == [41, None, None, None]


async def test_a_reader_that_leaves_ends_its_subscription(plane: Plane):
    async with serving(plane) as reader:
        async with reader.stream("GET", STREAM) as answer:
            plane.hub.feed.put_nowait((1, "snapshot", "{}"))
            await anext(answer.aiter_lines())
            assert plane.hub.readers == 1
        async with asyncio.timeout(5):
            while plane.hub.readers:
                await asyncio.sleep(0.01)


async def test_silence_is_filled_with_comments(plane: Plane):
    sent: list[bytes] = []
    enough = asyncio.Event()

    async def receive() -> dict[str, str]:
        await enough.wait()
        return {"type": "http.disconnect"}

    async def send(message: dict[str, object]) -> None:
        sent.append(bytes(message.get("body", b"")))
        if sent.count(b": ping\n\n") == 2:
            enough.set()

    stream = EventStream(plane.hub.subscribe(None), ping_s=0.01)
    async with asyncio.timeout(5):
        await stream({"type": "http"}, receive, send)

    assert plane.hub.readers == 0
    assert b": ping\n\n" in sent


def test_a_newline_in_the_data_cannot_forge_an_event():
    assert frame(1, "event", "a\nid: 9") == b"id: 1\nevent: event\ndata: a\ndata: id: 9\n\n"


def test_only_a_plain_number_is_an_event_id():
    ids = [last_event_id(text) for text in (None, "7", "07", "-7", "٣", "7 ", "1e3")]
    assert ids == [None, 7, 7, None, None, None, None]
