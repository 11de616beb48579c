"""Messages come from a plain socket into an event loop, all of them and in order."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import zmq

from engine.client.socket_reader import BURST, SocketReader
from engine.wire.sockets import connect_dealer, send_frames

pytestmark = pytest.mark.anyio


@pytest.fixture
def context() -> Iterator[Any]:
    context: Any = zmq.Context()
    yield context
    context.term()


class Line:
    """A reader at a ROUTER, and a DEALER at its other end."""

    def __init__(self, context: Any, address: str) -> None:
        self.context, self.address = context, address
        self.router: Any = context.socket(zmq.ROUTER)
        self.router.bind(address)
        self.got: asyncio.Queue[list[bytes]] = asyncio.Queue()
        self.reader = SocketReader(self.router, self.got.put_nowait)
        self.dealer: Any = connect_dealer(context, address, b"e0-1")

    def connect(self) -> None:
        """Let the DEALER notice its connection: then it introduces itself."""
        assert self.dealer.poll(5000, zmq.POLLOUT)

    async def next(self) -> list[bytes]:
        return await asyncio.wait_for(self.got.get(), 10)

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(self.reader.run())
            yield
            task.cancel()


@pytest.fixture
def line(context: Any, run_dir: Path) -> Iterator[Line]:
    line = Line(context, f"ipc://{run_dir}/s")
    yield line
    line.router.close(0)
    line.dealer.close(0)


async def test_more_than_a_burst_that_came_before_is_read_in_order(line: Line):
    for number in range(3 * BURST):
        line.dealer.send_multipart([b"t", b"%d" % number])
    while not line.router.poll(5000):
        continue

    async with line.reading():
        assert await line.next() == [b"e0-1", b""]  # the probe
        for number in range(3 * BURST):
            assert await line.next() == [b"e0-1", b"t", b"%d" % number]


async def test_what_came_while_something_was_sent_is_not_forgotten(line: Line):
    line.connect()
    async with line.reading():
        await line.next()
        for number in range(200):
            send_frames(line.dealer, [b"%d" % number])
            send_frames(line.router, [b"e0-1", b"to you"])  # takes the news from the descriptor
            line.reader.look_again()
            assert await line.next() == [b"e0-1", b"%d" % number]


async def test_sends_during_a_flood_do_not_multiply_the_burst(line: Line):
    line.connect()
    async with line.reading():
        await line.next()
        for number in range(30 * BURST):
            line.dealer.send_multipart([b"t", b"%d" % number])
        time.sleep(0.2)  # noqa: ASYNC251 - while the loop is busy, they all arrive
        taken: list[int] = []
        while sum(taken) < 30 * BURST:
            before = line.got.qsize()
            line.reader.look_again()  # as after a send
            await asyncio.sleep(0)
            taken.append(line.got.qsize() - before)

    assert max(taken) <= 2 * BURST, "of the descriptor, and of who sent"


async def test_what_came_while_a_full_socket_was_looked_at_is_not_forgotten(
    context: Any, run_dir: Path
):
    ends: list[Any] = [context.socket(zmq.PAIR) for _ in range(2)]
    for end in ends:
        end.setsockopt(zmq.SNDHWM, 1)
        end.setsockopt(zmq.RCVHWM, 1)
    here, there = ends
    here.bind(f"ipc://{run_dir}/pair")
    there.connect(f"ipc://{run_dir}/pair")
    got: asyncio.Queue[list[bytes]] = asyncio.Queue()
    reader = SocketReader(here, got.put_nowait)

    async def wait_for_room() -> None:
        there.send(b"news")
        time.sleep(0.2)  # noqa: ASYNC251 - it arrives before the loop looks at the descriptor
        await reader.writable()

    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(reader.run())
        while here.poll(200, zmq.POLLOUT):
            here.send(b"x" * 100_000)
        reader.look_again()
        await asyncio.sleep(0.05)
        waiting = tasks.create_task(wait_for_room())
        assert await asyncio.wait_for(got.get(), 5) == [b"news"]
        assert not waiting.done()
        waiting.cancel()
        running.cancel()
    for end in ends:
        end.close(0)


async def test_a_socket_without_a_peer_becomes_writable_with_it(context: Any, run_dir: Path):
    address = f"ipc://{run_dir}/late"
    dealer: Any = connect_dealer(context, address, b"g-1")
    reader = SocketReader(dealer, print)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(reader.run())
        writable = tasks.create_task(reader.writable())
        done, _ = await asyncio.wait({writable}, timeout=0.05)
        assert not done

        router: Any = context.socket(zmq.ROUTER)
        router.bind(address)

        await asyncio.wait_for(writable, 10)
        running.cancel()
    router.close(0)
    dealer.close(0)


async def test_what_the_receiver_raises_ends_the_reading(line: Line):
    def refuse(_frames: list[bytes]) -> None:
        raise ValueError("not this")

    line.connect()
    with pytest.raises(ValueError, match="not this"):
        await asyncio.wait_for(SocketReader(line.router, refuse).run(), 10)
