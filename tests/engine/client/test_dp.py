"""Clients of several engines: who names the engine, and what is known of each."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine.client.core_client import EngineDeadError
from engine.client.dp import ANY_ENGINE, DPAsyncMPClient, DPLBAsyncMPClient
from engine.config import ClientEndpoint
from engine.wire.addresses import input_address, output_address
from engine.wire.calls import Ping
from engine.wire.header import new_context
from engine.wire.messages import AbortReason, FinishReason
from tests.engine.client.drivers import a_config, a_request
from tests.fakes import FakeEngine

pytestmark = pytest.mark.anyio

IDS = ("e0", "e1", "e2")


class Rig:
    """Three fake engines and a client of them."""

    def __init__(self, run_dir: Path, kind: type[DPAsyncMPClient]) -> None:
        endpoint = ClientEndpoint(
            name="dp", input=input_address(run_dir, "dp"), output=output_address(run_dir, "dp")
        )
        self.client = kind("dp", 1, run_dir, IDS, on_message=lambda *_: None, on_hop=lambda _: None)
        self.engines: dict[str, FakeEngine] = {}
        for id_ in IDS:
            self.client.expect(id_, 1)
            config = msgspec.structs.replace(a_config(), engine_id=id_, clients=(endpoint,))
            self.engines[id_] = FakeEngine(config)

    def add(self, engine_id: str, name: str, max_tokens: int = 4, **request: Any) -> Any:
        return self.client.add_request(
            engine_id, a_request(name, max_tokens, **request), new_context(), external_id=name
        )

    def places(self) -> dict[str, set[str]]:
        return {id_: set(engine.live_requests) for id_, engine in self.engines.items()}


@contextlib.asynccontextmanager
async def rig_of(run_dir: Path, kind: type[DPAsyncMPClient]) -> AsyncIterator[Rig]:
    rig = Rig(run_dir, kind)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(rig.client.run())]
        tasks += [group.create_task(engine.run()) for engine in rig.engines.values()]
        for id_ in IDS:
            assert await rig.client.wait_reachable(id_, 5.0)
        yield rig
        for task in tasks:
            task.cancel()
    rig.client.close()


async def finish(collector: Any) -> FinishReason:
    async with asyncio.timeout(5):
        while True:
            output = await collector.get()
            if output.finish_reason is not None:
                return output.finish_reason


async def test_the_balancer_outside_names_the_engine_and_sees_the_load(run_dir: Path):
    async with rig_of(run_dir, DPAsyncMPClient) as rig:
        with pytest.raises(ValueError, match="none of e0, e1, e2"):
            rig.add("e9", "r")
        with pytest.raises(ValueError, match="none of"):
            rig.add(ANY_ENGINE, "r")
        long = [rig.add("e1", f"long{k}", 10_000) for k in range(3)]
        short = rig.add("e2", "short")
        assert dict(rig.client.load) == {"e1": 3, "e2": 1}

        assert await finish(short) is FinishReason.LENGTH
        rig.client.abort_requests(
            ["long0", "long1", "never-sent"], AbortReason.OPERATOR, new_context()
        )
        assert await finish(long[0]) is await finish(long[1]) is FinishReason.ABORT
        assert +rig.client.load == {"e1": 1}

        rig.client.forget("long2")
        assert not +rig.client.load


async def test_calls_reach_every_live_engine(run_dir: Path):
    async with rig_of(run_dir, DPAsyncMPClient) as rig:
        rig.client.fail_engine("e1", 1, "killed")

        pongs = await rig.client.call_each(Ping(), timeout_s=5, context=new_context())

        assert set(pongs) == {"e0", "e2"}


async def test_requests_spread_over_the_engines_and_leave_out_a_dead_one(run_dir: Path):
    async with rig_of(run_dir, DPLBAsyncMPClient) as rig:
        for k in range(6):
            rig.add(ANY_ENGINE, f"r{k}", 10_000, prompt=(k, k + 1))
        assert dict(rig.client.load) == {"e0": 2, "e1": 2, "e2": 2}

        rig.client.fail_engine("e1", 1, "killed")
        for k in range(6, 10):
            rig.add(ANY_ENGINE, f"r{k}", 10_000, prompt=(k, k + 1))
        assert +rig.client.load == {"e0": 4, "e2": 4}
        with pytest.raises(EngineDeadError):
            rig.add("e1", "late")

        rig.client.fail_all("killed")
        with pytest.raises(EngineDeadError, match="no engine is alive"):
            rig.add(ANY_ENGINE, "late")


async def test_a_conversation_goes_where_its_beginning_is(run_dir: Path):
    async with rig_of(run_dir, DPLBAsyncMPClient) as rig:
        talk = tuple(range(300))
        first = rig.add(ANY_ENGINE, "first", prompt=talk)
        for k in range(2):
            rig.add(ANY_ENGINE, f"other{k}", prompt=(k,))
        await finish(first)

        for turn in range(4):
            talk = (*talk, *range(turn, turn + 40))
            answer = rig.add(ANY_ENGINE, f"turn{turn}", prompt=talk)
            assert answer.engine_id == first.engine_id
            await finish(answer)
