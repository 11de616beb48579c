"""The keeper of a stream: it comments in silence and cuts a reader off that stalls."""

import asyncio
import time
from collections.abc import Iterator

import pytest
from starlette.types import Message

from appliance.gateway.data_plane import Timing
from appliance.gateway.generation import Delta
from appliance.gateway.journey import Journey
from appliance.gateway.openai.sse import SseStream
from appliance.gateway.request_context import ClientGoneError, RequestContext
from appliance.gateway.supervision import beside, together
from engine.wire.header import new_context

pytestmark = pytest.mark.anyio


class PlainFrames:
    """A dialect whose frames are their text."""

    def opening(self) -> Iterator[bytes]:
        return iter(())

    def delta(self, delta: Delta) -> list[bytes]:
        return [delta.text.encode()]

    def closing(self) -> Iterator[bytes]:
        return iter(())


class Reader:
    """A client that takes nothing while `blocked` is there."""

    def __init__(self) -> None:
        self.blocked: asyncio.Future[None] | None = None
        self.bodies: list[bytes] = []
        self.was_cut = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.body":
            if self.blocked is not None:
                await self.blocked
            self.bodies.append(message["body"])

    def cut(self) -> None:
        self.was_cut = True


def a_stream(reader: Reader, timing: Timing) -> SseStream:
    context = RequestContext(
        hex_id="0" * 24,
        trace=new_context(),
        parent_span_id=None,
        received_ns=0,
        is_local=True,
        client_request_id=None,
    )
    journey = Journey(context, route="/v1/completions", method="POST")
    return SseStream(reader.send, reader.cut, PlainFrames(), journey, timing)


async def test_silence_after_a_slow_delta_is_commented_in_time():
    reader = Reader()
    reader.blocked = asyncio.get_running_loop().create_future()
    stream = a_stream(reader, Timing(hold_status_s=0.05, comment_s=0.1, stall_s=20.0))
    async with asyncio.TaskGroup() as tasks:
        keeper = tasks.create_task(stream.keep_alive())
        delta = tasks.create_task(stream.emit(Delta(0, "text")))
        await asyncio.sleep(0.15)  # the keeper has seen that the delta is not taken
        blocked, reader.blocked = reader.blocked, None
        blocked.set_result(None)
        await delta
        await asyncio.sleep(0.5)
        keeper.cancel()

    assert len(reader.bodies) > 1, "a comment came"


async def test_a_reader_that_stalls_while_a_comment_is_due_is_cut_off():
    loop = asyncio.get_running_loop()
    reader = Reader()
    stream = a_stream(reader, Timing(hold_status_s=0.1, comment_s=0.1, stall_s=0.3))
    first, never = loop.create_future(), loop.create_future()

    def take_one() -> None:
        reader.blocked = never
        first.set_result(None)

    reader.blocked = first
    loop.call_later(0.05, take_one)
    # the delta is taken and the comment is due in the same turn of the loop
    loop.call_later(0.02, time.sleep, 0.2)
    deltas = together([stream.emit(Delta(index, "text")) for index in range(2)])
    with pytest.raises(ClientGoneError):
        await asyncio.wait_for(beside(stream.keep_alive(), deltas), 3)

    assert reader.was_cut
