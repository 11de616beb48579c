"""A whole gateway on a loopback port, with an engine and a supervisor that speak the real wire."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import openai

from appliance.control_link.gateway_config import GatewayConfig
from appliance.gateway.data_plane import Timing
from appliance.gateway.serve import Gateway
from engine.config import ClientEndpoint, EngineConfig
from engine.wire.addresses import input_address, output_address
from engine.wire.messages import AddRequest
from tests.appliance.gateway.fake_supervisor import GATEWAY, KEY, MODEL, FakeSupervisor, a_route
from tests.fakes import FakeEngine, echo

FAST = Timing(hold_status_s=0.1, comment_s=0.05, stall_s=0.5, settle_s=2.0)
CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "The capital"}]}


@dataclass
class Stand:
    """What a test works with."""

    tasks: asyncio.TaskGroup
    run_dir: Path
    supervisor: FakeSupervisor
    gateway: Gateway
    serving: asyncio.Task[None]
    port: int
    unix_path: Path
    engines: dict[str, FakeEngine] = field(default_factory=dict)
    engine_tasks: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    closers: contextlib.AsyncExitStack = field(default_factory=contextlib.AsyncExitStack)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def engine(self) -> FakeEngine:
        return self.engines["e0"]

    async def http(self, key: str | None = KEY) -> httpx.AsyncClient:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        client = httpx.AsyncClient(base_url=self.url, headers=headers, timeout=20)
        return await self.closers.enter_async_context(client)

    async def local_http(self) -> httpx.AsyncClient:
        transport = httpx.AsyncHTTPTransport(uds=str(self.unix_path))
        client = httpx.AsyncClient(base_url="http://localhost", transport=transport, timeout=20)
        return await self.closers.enter_async_context(client)

    async def sdk(self, key: str = KEY) -> openai.AsyncOpenAI:
        client = openai.AsyncOpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0)
        return await self.closers.enter_async_context(client)

    def start_engine(
        self,
        engine_id: str = "e0",
        epoch: int = 1,
        *,
        next_token: Callable[[AddRequest, int], int] = echo,
        step_s: float = 0.002,
        eos_token_id: int | None = None,
    ) -> FakeEngine:
        endpoint = ClientEndpoint(
            name=GATEWAY,
            input=input_address(self.run_dir, GATEWAY),
            output=output_address(self.run_dir, GATEWAY),
        )
        config = EngineConfig(
            engine_id=engine_id, epoch=epoch, model="", model_name=MODEL, clients=(endpoint,)
        )
        engine = FakeEngine(config, next_token=next_token, step_s=step_s, eos_token_id=eos_token_id)
        self.engines[engine_id] = engine
        self.engine_tasks[engine_id] = self.tasks.create_task(engine.run())
        return engine

    async def kill_engine(self, engine_id: str = "e0") -> None:
        """End the engine without a word, as SIGKILL does; the supervisor says so."""
        task = self.engine_tasks.pop(engine_id)
        task.cancel()
        await asyncio.wait([task])
        self.supervisor.move(engine_id, state="backoff", reason="killed by signal 9")

    async def restart_engine(self, engine_id: str = "e0", **kwargs: object) -> FakeEngine:
        epoch = self.engines[engine_id].config.epoch + 1
        self.supervisor.move(engine_id, state="starting", epoch=epoch)
        engine = self.start_engine(engine_id, epoch, **kwargs)
        self.supervisor.move(engine_id, state="ready", epoch=epoch)
        return engine


@contextlib.asynccontextmanager
async def running(
    run_dir: Path,
    model_path: Path,
    *,
    engine: bool = True,
    timing: Timing = FAST,
    prepare: Callable[[FakeSupervisor], None] = lambda supervisor: None,
    strict_parameters: bool = False,
    cors_origins: tuple[str, ...] = (),
    **engine_options: object,
) -> AsyncIterator[Stand]:
    """Run everything for the length of the block."""
    supervisor = FakeSupervisor(run_dir)
    supervisor.engines["e0"] = a_route(model_path)
    prepare(supervisor)
    tcp = socket.create_server(("127.0.0.1", 0))
    port = tcp.getsockname()[1]
    unix_path = run_dir / "data.sock"
    unix = socket.socket(socket.AF_UNIX)
    unix.bind(str(unix_path))
    unix.listen()
    config = GatewayConfig(
        name=GATEWAY,
        index=0,
        epoch=1,
        run_dir=str(run_dir),
        tcp_fd=tcp.detach(),
        unix_fd=unix.detach(),
        strict_parameters=strict_parameters,
        cors_origins=cors_origins,
        drain_s=2,
    )
    gateway = Gateway(config, 1, timing)
    async with asyncio.TaskGroup() as tasks:
        supervising = tasks.create_task(supervisor.run())
        serving = tasks.create_task(gateway.run())
        stand = Stand(tasks, run_dir, supervisor, gateway, serving, port, unix_path)
        if engine:
            stand.start_engine(**engine_options)
        await supervisor.acked(1)
        async with stand.closers:
            yield stand
        gateway.stop()
        gateway.stop()
        await asyncio.wait([serving])
        unix_path.unlink()
        assert supervisor.stale == 0
        for task in (*stand.engine_tasks.values(), supervising):
            task.cancel()
