"""Starts a real engine process and a real client for it."""

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import msgspec

from engine.client.async_mp import AsyncMPClient
from engine.client.collector import RequestOutputCollector
from engine.clock import now_ns
from engine.config import ClientEndpoint, EngineConfig
from engine.wire.addresses import input_address, output_address
from engine.wire.calls import Call
from engine.wire.header import new_context
from engine.wire.hops import HopRecord
from engine.wire.messages import (
    AddRequest,
    EngineRecords,
    FromEngine,
    RequestOutput,
    SamplingParams,
)

BodyT = TypeVar("BodyT", bound=FromEngine)
ResultT = TypeVar("ResultT")
ROOT = Path(__file__).parents[3]
HASH_ENGINE = "tests.engine.core.hash_engine"


def endpoint(run_dir: Path, name: str) -> ClientEndpoint:
    return ClientEndpoint(
        name=name, input=input_address(run_dir, name), output=output_address(run_dir, name)
    )


def spawn(config: EngineConfig, module: str = HASH_ENGINE) -> tuple[subprocess.Popen[bytes], int]:
    """Start an engine; return it and the write end of its parent pipe."""
    config_read, config_write = os.pipe()
    parent_read, parent_write = os.pipe()
    command = [sys.executable, "-m", module]
    command += ["--config-fd", str(config_read), "--parent-fd", str(parent_read)]
    process = subprocess.Popen(command, pass_fds=(config_read, parent_read), cwd=ROOT)
    os.close(config_read)
    os.close(parent_read)
    with os.fdopen(config_write, "wb") as file:
        file.write(msgspec.json.encode(config))
    return process, parent_write


@dataclass
class Station:
    """A client, its engine's process, and all that the client heard."""

    client: AsyncMPClient
    process: subprocess.Popen[bytes]
    parent_write: int
    spawned_ns: int
    heard: list[tuple[int, FromEngine]] = field(default_factory=list)
    hops: list[HopRecord] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def on_message(self, _engine_id: str, _epoch: int, message: FromEngine) -> None:
        self.heard.append((now_ns(), message))
        self.changed.set()

    def all_of(self, kind: type[BodyT]) -> list[BodyT]:
        return [message for _, message in self.heard if isinstance(message, kind)]

    async def wait_for(self, kind: type[BodyT], count: int = 1) -> BodyT:
        """The `count`th message of a kind, once it has come."""
        async with asyncio.timeout(20):
            while len(self.all_of(kind)) < count:
                self.changed.clear()
                await self.changed.wait()
        return self.all_of(kind)[count - 1]

    async def wait_exit(self) -> int:
        async with asyncio.timeout(20):
            return await asyncio.to_thread(self.process.wait)

    def add(self, name: str, prompt: list[int], **options: object) -> RequestOutputCollector:
        sampling = SamplingParams(**{"max_tokens": 8, "temperature": 0.0, **options})
        request = AddRequest(
            request_id=name,
            prompt_token_ids=tuple(prompt),
            sampling=sampling,
            arrival_ns=now_ns(),
        )
        return self.client.add_request("e0", request, new_context(), external_id=name)

    async def call(self, call: Call[ResultT], timeout_s: float = 10.0) -> ResultT:
        return await self.client.call("e0", call, timeout_s=timeout_s, context=new_context())

    def engine_hops(self) -> list[HopRecord]:
        return [hop for records in self.all_of(EngineRecords) for hop in records.hops]


async def finish(collector: RequestOutputCollector) -> tuple[list[int], RequestOutput]:
    """All tokens of a request and its last output."""
    tokens: list[int] = []
    async with asyncio.timeout(20):
        while True:
            output = await collector.get()
            tokens += output.new_token_ids
            if output.finish_reason:
                return tokens, output


@asynccontextmanager
async def engine_station(
    run_dir: Path,
    *,
    model: str = "hash",
    module: str = HASH_ENGINE,
    more_clients: tuple[str, ...] = (),
    **options: object,
) -> AsyncIterator[Station]:
    """An engine `e0` of epoch 3 whose client 0 is ours."""
    clients = tuple(endpoint(run_dir, name) for name in ("supervisor", *more_clients))
    config = EngineConfig(
        engine_id="e0", epoch=3, model=model, model_name="m", clients=clients, **options
    )
    heard: list[Station] = []
    client = AsyncMPClient(
        "supervisor",
        1,
        run_dir,
        on_message=lambda *message: heard[0].on_message(*message),
        on_hop=lambda hop: heard[0].hops.append(hop),
    )
    client.expect("e0", 3)
    spawned_ns = now_ns()
    process, parent_write = spawn(config, module)
    station = Station(client, process, parent_write, spawned_ns)
    heard.append(station)
    try:
        async with asyncio.TaskGroup() as tasks:
            receiving = tasks.create_task(client.run())
            yield station
            receiving.cancel()
    finally:
        process.kill()
        process.wait()
        with contextlib.suppress(OSError):  # the test may have closed it
            os.close(parent_write)
        client.close()
