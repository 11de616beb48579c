"""The supervisor's end of the control link, spoken to over real sockets."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import zmq.asyncio

from appliance.control_link import supervisor_end
from appliance.control_link.gateway_end import GatewayLink
from appliance.control_link.messages import (
    AbortHeld,
    AbortResult,
    FleetState,
    GatewayHello,
    KeyRecord,
    Limits,
    StateAck,
    WakeEngine,
)
from appliance.control_link.supervisor_end import CONTROL_CODEC, SupervisorLink
from engine.wire.addresses import control_address, engine_identity
from engine.wire.header import new_context
from engine.wire.hops import HopRecord
from engine.wire.messages import Body
from engine.wire.sockets import HeaderMaker, connect_dealer, split

pytestmark = pytest.mark.anyio

STATE = FleetState(
    sequence=0,
    engines=(),
    keys=(KeyRecord(key_id="k", name="", sha256="00", scope="inference"),),
    limits=Limits(max_queued=1, requests_per_minute=1, tokens_per_minute=1, hold_s=1),
    on_asleep="wake",
    draining=False,
    auth_required=True,
)


class Gateway:
    """A DEALER that says what the test wants."""

    def __init__(self, run_dir: Path, name: str, epoch: int) -> None:
        self.name, self.epoch = name, epoch
        self.context = zmq.asyncio.Context()
        self.headers = HeaderMaker(name, epoch)
        identity = engine_identity(name, epoch)
        self.socket = connect_dealer(self.context, control_address(run_dir), identity)

    async def say(self, body: Body) -> None:
        frames = CONTROL_CODEC.encode(self.headers.make(new_context(), 0), body)
        await self.socket.send_multipart(frames)

    async def greet(self) -> None:
        await self.say(GatewayHello(name=self.name, index=0, epoch=self.epoch, pid=1))

    async def hear(self) -> Body:
        frames = await asyncio.wait_for(self.socket.recv_multipart(), 10)
        return split(frames, CONTROL_CODEC).body


class Link:
    """The link under test and what it told."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.heard: asyncio.Queue[tuple[str, int, Body]] = asyncio.Queue()
        self.hops: list[HopRecord] = []
        self.end = SupervisorLink(
            run_dir,
            1,
            on_message=lambda *message: self.heard.put_nowait(message),
            on_hop=self.hops.append,
        )
        self.gateways: list[Gateway] = []

    def gateway(self, name: str = "gateway-0", epoch: int = 1) -> Gateway:
        self.gateways.append(Gateway(self.run_dir, name, epoch))
        return self.gateways[-1]

    async def next(self) -> tuple[str, int, Body]:
        return await asyncio.wait_for(self.heard.get(), 10)


@asynccontextmanager
async def running(run_dir: Path) -> AsyncIterator[Link]:
    link = Link(run_dir)
    try:
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(link.end.run())
            yield link
            task.cancel()
    finally:
        for gateway in link.gateways:
            gateway.context.destroy(linger=0)
        link.end.close()


async def test_a_gateway_gets_the_state_when_it_greets_and_each_newer_one(run_dir: Path):
    async with running(run_dir) as link:
        link.end.expect("gateway-0", 1)
        link.end.publish(STATE)
        gateway = link.gateway()
        await gateway.greet()
        first = await gateway.hear()
        assert isinstance(first, FleetState)
        assert (await link.next())[:2] == ("gateway-0", 1)

        assert link.end.publish(STATE) == 2
        second = await gateway.hear()
        assert isinstance(second, FleetState)
        assert (first.sequence, second.sequence) == (1, 2)
        assert link.end.unacked_s("gateway-0") > 0

        await gateway.say(StateAck(sequence=2))
        await gateway.say(WakeEngine(engine_id="e0", request_id="r"))
        await link.next()
        assert link.end.acked("gateway-0") == 2
        assert link.end.unacked_s("gateway-0") == 0


async def test_a_state_is_sent_again_until_it_is_acknowledged(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(supervisor_end, "RESEND_S", 0.02)
    async with running(run_dir) as link:
        link.end.expect("gateway-0", 1)
        link.end.publish(STATE)
        gateway = link.gateway()
        await gateway.greet()
        again = [await gateway.hear() for _ in range(3)]

        assert [isinstance(s, FleetState) and s.sequence for s in again] == [1, 1, 1]


async def test_a_gateway_of_another_epoch_is_fenced(run_dir: Path):
    async with running(run_dir) as link:
        link.end.expect("gateway-0", 2)
        old = link.gateway(epoch=1)
        stranger = link.gateway(name="gateway-9", epoch=1)
        await old.greet()
        await stranger.greet()
        current = link.gateway(epoch=2)
        await current.greet()

        assert (await link.next())[:2] == ("gateway-0", 2)
        while link.end.counts.fenced < 2:
            await asyncio.sleep(0.01)
        assert link.heard.empty()
        outcomes = sorted(getattr(hop, "outcome", "") for hop in link.hops)
        assert outcomes == ["fenced", "fenced", "ok"]


async def test_junk_is_dropped_and_counted(run_dir: Path):
    async with running(run_dir) as link:
        link.end.expect("gateway-0", 1)
        gateway = link.gateway()
        header, body = b"\xff" * 40, b"\x00"
        for frames in ([b"x"], [b"\x52", header, body], [b"\x99", header, body], [b"a"] * 9):
            await gateway.socket.send_multipart(frames)
        await gateway.greet()

        await link.next()
        assert link.end.counts.undecodable == 4


async def test_an_abort_finds_the_gateway_that_holds_the_request(run_dir: Path):
    async with running(run_dir) as link:
        gateways = []
        for index in range(2):
            link.end.expect(f"gateway-{index}", 1)
            gateways.append(link.gateway(f"gateway-{index}"))
            await gateways[-1].greet()
            await link.next()

        async def answer(gateway: Gateway, *, found: bool) -> None:
            asked = await gateway.hear()
            assert isinstance(asked, AbortHeld)
            tokens = 5 if found else 0
            await gateway.say(
                AbortResult(call_id=asked.call_id, found=found, completion_tokens=tokens)
            )

        async with asyncio.TaskGroup() as tasks:
            asking = tasks.create_task(link.end.abort("req-1", "operator", 10))
            for index, gateway in enumerate(gateways):
                tasks.create_task(answer(gateway, found=index == 1))
        result = asking.result()
        assert result is not None
        assert result.completion_tokens == 5

        async with asyncio.TaskGroup() as tasks:
            asking = tasks.create_task(link.end.abort("req-2", "operator", 10))
            for gateway in gateways:
                tasks.create_task(answer(gateway, found=False))
        assert asking.result() is None


async def test_an_abort_does_not_wait_for_a_gateway_that_died(run_dir: Path):
    async with running(run_dir) as link:
        link.end.expect("gateway-0", 1)
        await link.gateway().greet()
        await link.next()
        async with asyncio.TaskGroup() as tasks:
            asking = tasks.create_task(link.end.abort("req-1", "operator", 10))
            await asyncio.sleep(0)
            link.end.forget("gateway-0")

        assert asking.result() is None
        assert await link.end.abort("req-1", "operator", 10) is None


async def test_an_abort_gives_up_at_its_deadline(run_dir: Path):
    async with running(run_dir) as link:
        link.end.expect("gateway-0", 1)
        await link.gateway().greet()
        await link.next()

        assert await link.end.abort("req-1", "operator", 0.02) is None


async def test_what_a_gateway_says_before_there_is_a_connection_is_refused_not_an_error(
    run_dir: Path,
):
    """The hello waits for the connection; what would wait behind it is not taken."""
    link = GatewayLink("gateway-0", 1, run_dir, on_message=lambda _: None)
    hello = GatewayHello(name="gateway-0", index=0, epoch=1, pid=1)
    running = asyncio.ensure_future(link.run(hello))
    await asyncio.sleep(0)

    assert not link.send(StateAck(sequence=1))

    heard: list[tuple[str, Body]] = []
    supervisor = SupervisorLink(
        run_dir,
        1,
        on_message=lambda name, _epoch, body: heard.append((name, body)),
        on_hop=lambda _: None,
    )
    supervisor.expect("gateway-0", 1)
    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        served = tasks.create_task(supervisor.run())
        while not heard:
            await asyncio.sleep(0.01)
        assert link.send(WakeEngine(engine_id="e0", request_id="r"))
        while len(heard) < 2:
            await asyncio.sleep(0.01)
        served.cancel()
    running.cancel()
    link.close()
    supervisor.close()
    assert [type(body) for _, body in heard] == [GatewayHello, WakeEngine]
