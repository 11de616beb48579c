"""The asyncio client against an engine on real sockets."""

import asyncio
import contextlib
import pickle
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq

from engine.client.async_mp import AsyncMPClient
from engine.client.core_client import (
    EngineDeadError,
    EngineUnreachableError,
    UtilityCallError,
    UtilityTimeoutError,
)
from engine.clock import now_ns
from engine.config import ClientEndpoint, EngineConfig
from engine.wire.addresses import input_address, output_address
from engine.wire.calls import Ping, Sleep, Wake
from engine.wire.codec import ENGINE_CODEC
from engine.wire.header import Header, new_context
from engine.wire.hops import HopReceived, HopSent
from engine.wire.messages import (
    AbortReason,
    AddRequest,
    EngineHello,
    EngineReady,
    FinishReason,
    RequestOutput,
    SamplingParams,
)
from tests.fakes import FakeEngine

pytestmark = pytest.mark.anyio


def a_request(request_id: str, max_tokens: int = 4, **sampling: Any) -> AddRequest:
    return AddRequest(
        request_id=request_id,
        prompt_token_ids=(7, 8, 9),
        sampling=SamplingParams(max_tokens=max_tokens, **sampling),
        arrival_ns=now_ns(),
    )


def a_config(run_dir: Path, epoch: int = 1) -> EngineConfig:
    endpoint = ClientEndpoint(
        name="gateway-0",
        input=input_address(run_dir, "gateway-0"),
        output=output_address(run_dir, "gateway-0"),
    )
    return EngineConfig(
        engine_id="e0", epoch=epoch, model="none", model_name="fake", clients=(endpoint,)
    )


class Rig:
    """A client and a fake engine, both running."""

    def __init__(self, run_dir: Path) -> None:
        self.messages: list[Any] = []
        self.hops: list[HopSent | HopReceived] = []
        self.run_dir = run_dir
        self.client = AsyncMPClient(
            "gateway-0",
            1,
            run_dir,
            on_message=lambda engine_id, epoch, message: self.messages.append(message),
            on_hop=self.hops.append,
        )
        self.client.expect("e0", 1)
        self.engine = FakeEngine(a_config(run_dir))
        self.engine_task: asyncio.Task[None] | None = None


@pytest.fixture
async def rig(run_dir: Path) -> AsyncIterator[Rig]:
    rig = Rig(run_dir)
    loop = asyncio.get_running_loop()
    tasks = [loop.create_task(rig.client.run()), loop.create_task(rig.engine.run())]
    rig.engine_task = tasks[1]
    assert await rig.client.wait_reachable("e0", 2.0)
    yield rig
    for task in tasks:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    rig.client.close()


async def read_all(collector: Any) -> list[RequestOutput]:
    outputs = [await collector.get()]
    while outputs[-1].finish_reason is None:
        outputs.append(await collector.get())
    return outputs


async def test_tokens_of_eight_requests_arrive_each_at_its_own_collector(rig: Rig):
    collectors = [
        rig.client.add_request("e0", a_request(f"r{k}", 3 + k), new_context(), external_id=f"x{k}")
        for k in range(8)
    ]

    answers = [await read_all(collector) for collector in collectors]

    for k, outputs in enumerate(answers):
        tokens = [token for output in outputs for token in output.new_token_ids]
        assert tokens == [(7, 8, 9)[i % 3] for i in range(3 + k)]
        assert outputs[-1].finish_reason is FinishReason.LENGTH


async def test_hello_and_ready_reach_the_owner(rig: Rig):
    async with asyncio.timeout(2):
        while len(rig.messages) < 3:
            await asyncio.sleep(0.01)

    kinds = {type(message) for message in rig.messages}
    assert {EngineHello, EngineReady} <= kinds


async def test_an_abort_ends_the_request_and_its_last_output_still_arrives(rig: Rig):
    collector = rig.client.add_request("e0", a_request("r", 10_000), new_context(), external_id="x")
    await collector.get()

    rig.client.abort("e0", ("r",), AbortReason.CLIENT_DISCONNECTED, new_context())

    assert (await read_all(collector))[-1].finish_reason is FinishReason.ABORT
    assert rig.engine.live_requests == set()


async def test_outputs_that_did_arrive_are_read_before_the_death_is_told(rig: Rig):
    collector = rig.client.add_request("e0", a_request("r", 10_000), new_context(), external_id="x")
    await collector.get()
    await asyncio.sleep(0.05)

    rig.client.fail_engine("e0", 1, "killed")

    assert (await collector.get()).new_token_ids
    with pytest.raises(EngineDeadError, match="killed"):
        await collector.get()


async def test_a_dying_engine_fails_its_requests_and_calls(rig: Rig):
    rig.engine.may_step.clear()
    collector = rig.client.add_request("e0", a_request("r"), new_context(), external_id="x")

    await rig.engine.die()

    async with asyncio.timeout(2):
        with pytest.raises(EngineDeadError):
            await collector.get()
    with pytest.raises(EngineDeadError):
        await rig.client.call("e0", Ping(), timeout_s=1, context=new_context())


async def test_utility_calls_answer_with_their_own_result_type(rig: Rig):
    report = await rig.client.call("e0", Sleep(level=2), timeout_s=2, context=new_context())
    assert report.level == 2

    with pytest.raises(UtilityCallError, match="asleep"):
        await rig.client.call("e0", Ping(), timeout_s=2, context=new_context())

    assert (await rig.client.call("e0", Wake(), timeout_s=2, context=new_context())).canary_ok


async def test_a_call_without_a_reply_times_out_and_a_late_reply_is_dropped(rig: Rig):
    rig.engine.may_step.clear()
    rig.client.add_request("e0", a_request("r"), new_context(), external_id="x")

    with pytest.raises(UtilityTimeoutError, match="Sleep"):
        await rig.client.call("e0", Sleep(mode="wait"), timeout_s=0.1, context=new_context())

    rig.engine.may_step.set()
    async with asyncio.timeout(2):
        while not rig.client.counts.unknown:
            await asyncio.sleep(0.01)


async def test_an_engine_of_another_epoch_is_fenced(rig: Rig):
    collector = rig.client.add_request("e0", a_request("r", 10_000), new_context(), external_id="x")
    await collector.get()

    rig.client.expect("e0", 2)

    with pytest.raises(EngineDeadError, match="replaced by epoch 2"):
        await read_all(collector)
    async with asyncio.timeout(2):
        while not rig.client.counts.fenced:
            await asyncio.sleep(0.01)
    assert any(isinstance(hop, HopReceived) and hop.outcome == "fenced" for hop in rig.hops)
    with pytest.raises(EngineUnreachableError, match="no route"):
        rig.client.add_request("e0", a_request("q"), new_context(), external_id="y")


async def test_every_sent_message_has_its_half_of_the_hop(rig: Rig):
    context = new_context()
    collector = rig.client.add_request("e0", a_request("r"), context, external_id="x")
    await read_all(collector)
    await rig.client.call("e0", Ping(), timeout_s=2, context=context)

    sent = [hop for hop in rig.hops if isinstance(hop, HopSent)]
    received = [hop for hop in rig.hops if isinstance(hop, HopReceived)]
    assert [hop.message for hop in sent] == ["AddRequest", "UtilityCall"]
    assert sent[0].span_id == collector.send_span_id
    assert {hop.trace_id for hop in sent} == {context.trace_id}
    assert all(hop.parent_id == context.span_id and hop.size_bytes > 0 for hop in sent)
    assert sum(hop.message == "EngineOutputs" for hop in received) == rig.engine.step
    assert all(h.sent_ns <= h.received_ns <= h.dequeued_ns <= h.done_ns for h in received)


class Bomb:
    """Runs code when unpickled."""

    def __reduce__(self) -> Any:
        return (exec, ("raise SystemExit('unpickled')",))


@pytest.mark.parametrize(
    "frames",
    [
        [b""],
        [b"\xff" * 1024],
        [b"\x13", b"\x93\x01", b"\xc0"],
        [b"\x13", msgspec.msgpack.encode([1] * 9), b"\xc0"],
        [pickle.dumps(Bomb())] * 3,
        [b"\x7f", b"", b""],
        [b"\x13", b"", b"\x91" * 100_000],
    ],
)
async def test_junk_is_dropped_and_counted_and_streams_go_on(rig: Rig, frames: list[bytes]):
    collector = rig.client.add_request("e0", a_request("r", 20), new_context(), external_id="x")
    junk = rig.client._resources.context.socket(zmq.PUSH)
    junk.setsockopt(zmq.LINGER, 0)
    junk.connect(output_address(rig.run_dir, "gateway-0"))
    junk.send_multipart(frames)

    assert len([t for o in await read_all(collector) for t in o.new_token_ids]) == 20
    async with asyncio.timeout(2):
        while not rig.client.counts.undecodable:
            await asyncio.sleep(0.01)
    junk.close()


async def test_a_message_of_a_future_protocol_version_is_dropped(rig: Rig):
    header = Header(99, 1, "e0", 1, 1, "0" * 32, "0" * 16, 0, now_ns())
    push = rig.client._resources.context.socket(zmq.PUSH)
    push.connect(output_address(rig.run_dir, "gateway-0"))
    push.send_multipart(ENGINE_CODEC.encode(header, rig.engine._ready()))

    async with asyncio.timeout(2):
        while not rig.client.counts.undecodable:
            await asyncio.sleep(0.01)
    push.close(0)
