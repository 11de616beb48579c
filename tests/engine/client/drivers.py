"""One way to drive every client, so that one suite holds for all of them."""

import asyncio
import os
import signal
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from engine.client.async_mp import AsyncMPClient
from engine.client.core_client import OutputCollector, SyncEngineCoreClient
from engine.client.dp import ANY_ENGINE, DPAsyncMPClient, DPLBAsyncMPClient
from engine.client.factory import CLIENT_NAME, EPOCH, OfflinePlan, start_engines
from engine.client.handshake import Handshake
from engine.client.launch import private_directory
from engine.client.sync_mp import SyncMPClient
from engine.clock import now_ns
from engine.config import EngineConfig
from engine.wire.calls import Call
from engine.wire.header import new_context
from engine.wire.messages import AbortReason, AddRequest, RequestOutput, SamplingParams
from engine.wire.sockets import MessageCounts

FAKE = "tests.engine.client.fake_engine_process"
ROOT = Path(__file__).parents[3]
KINDS = ("inproc", "sync", "async", "dp", "dplb")
PROMPT = (7, 8, 9)
DONE_S = 10.0


def a_request(request_id: str, max_tokens: int = 4, prompt: tuple[int, ...] = PROMPT) -> AddRequest:
    return AddRequest(
        request_id=request_id,
        prompt_token_ids=prompt,
        sampling=SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True),
        arrival_ns=now_ns(),
    )


def a_config(model: str = "fake", **options: Any) -> EngineConfig:
    return EngineConfig(
        engine_id="e0", epoch=EPOCH, model=model, model_name="m", clients=(), max_loras=0, **options
    )


class Driver(ABC):
    """A client and its engine `e0`."""

    pids: tuple[int, ...] = ()
    counts: MessageCounts

    @abstractmethod
    def add(self, request: AddRequest) -> None: ...

    @abstractmethod
    def outputs_of(
        self, request_id: str, until: Callable[[RequestOutput], bool]
    ) -> list[RequestOutput]:
        """Outputs up to the first that `until` holds for."""

    @abstractmethod
    def abort(self, *request_ids: str) -> None: ...

    @abstractmethod
    def forget(self, request_id: str) -> None: ...

    @abstractmethod
    def call(self, call: Call[Any], timeout_s: float = 10.0) -> Any: ...

    @abstractmethod
    def close(self) -> None: ...

    def expected(self, num_tokens: int) -> list[int]:
        return [PROMPT[index % len(PROMPT)] for index in range(num_tokens)]

    def finish(self, request_id: str) -> tuple[list[int], RequestOutput]:
        outputs = self.outputs_of(request_id, lambda output: output.finish_reason is not None)
        return [token for output in outputs for token in output.new_token_ids], outputs[-1]

    def kill_engine(self) -> None:
        for pid in self.pids:
            os.kill(pid, signal.SIGKILL)


class SyncDriver(Driver):
    """Around a synchronous client."""

    def __init__(self, client: SyncEngineCoreClient) -> None:
        self.client = client
        self.counts = client.counts  # type: ignore[attr-defined]
        self._outputs: dict[str, list[RequestOutput]] = {}

    def add(self, request: AddRequest) -> None:
        self.client.add_request("e0", request, new_context(), external_id=request.request_id)

    def outputs_of(
        self, request_id: str, until: Callable[[RequestOutput], bool]
    ) -> list[RequestOutput]:
        deadline_ns = now_ns() + int(DONE_S * 1e9)
        while not any(until(output) for output in self._outputs.get(request_id, ())):
            assert now_ns() < deadline_ns, f"{request_id} did not get there"
            for output in self.client.get_outputs(1.0):
                self._outputs.setdefault(output.request_id, []).append(output)
        return self._outputs.pop(request_id)

    def abort(self, *request_ids: str) -> None:
        self.client.abort("e0", request_ids, AbortReason.CLIENT_DISCONNECTED, new_context())

    def forget(self, request_id: str) -> None:
        self.client.forget(request_id)

    def call(self, call: Call[Any], timeout_s: float = 10.0) -> Any:
        return self.client.call("e0", call, timeout_s=timeout_s, context=new_context())

    def close(self) -> None:
        self.client.close()


class InprocDriver(SyncDriver):
    """An engine in this process, with a runner that hashes."""

    def expected(self, num_tokens: int) -> list[int]:
        from tests.engine.core.kv_runner import oracle

        return oracle(PROMPT, num_tokens)

    def kill_engine(self) -> None:
        """The device breaks in the next step."""
        from tests.engine.core.kv_runner import FATAL

        self.add(a_request("killer", prompt=(FATAL,)))


class Loop:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(DONE_S)

    def start(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(DONE_S)
        self._loop.close()


class AsyncDriver(Driver):
    """Around an asyncio client, whose event loop runs in a thread."""

    def __init__(self, client: AsyncMPClient, loop: Loop, engine_id: str) -> None:
        self.client = client
        self.counts = client.counts
        self._loop = loop
        self._engine_id = engine_id
        self._collectors: dict[str, OutputCollector] = {}
        self._receiving = loop.start(client.run())

    def add(self, request: AddRequest) -> None:
        async def add() -> OutputCollector:
            return self.client.add_request(
                self._engine_id, request, new_context(), external_id=request.request_id
            )

        self._collectors[request.request_id] = self._loop.run(add())

    def outputs_of(
        self, request_id: str, until: Callable[[RequestOutput], bool]
    ) -> list[RequestOutput]:
        async def take() -> list[RequestOutput]:
            outputs = [await self._collectors[request_id].get()]
            while not until(outputs[-1]):
                outputs.append(await self._collectors[request_id].get())
            return outputs

        return self._loop.run(take())

    def abort(self, *request_ids: str) -> None:
        async def abort() -> None:
            self.client.abort("e0", request_ids, AbortReason.CLIENT_DISCONNECTED, new_context())

        self._loop.run(abort())

    def forget(self, request_id: str) -> None:
        async def forget() -> None:
            self.client.forget(request_id)

        self._loop.run(forget())

    def call(self, call: Call[Any], timeout_s: float = 10.0) -> Any:
        return self._loop.run(
            self.client.call("e0", call, timeout_s=timeout_s, context=new_context())
        )

    def close(self) -> None:
        async def close() -> None:
            self.client.close()

        self._receiving.cancel()
        self._loop.run(close())


@contextmanager
def driver_of(kind: str, model: str = "fake") -> Iterator[Driver]:
    """A driver of each kind of client, its engine ready."""
    plan = OfflinePlan(config=a_config(model), start_timeout_s=20.0, module=FAKE)
    if kind == "inproc":
        from engine.client.inproc import InprocClient
        from tests.engine.core.kv_runner import KvRunner

        client = InprocClient(
            a_config(), make_runner=lambda config: KvRunner(64, config.block_size, 800)
        )
        yield InprocDriver(client)
        client.close()
        return
    handshake = Handshake(plan.engine_ids)
    loop = Loop()
    try:
        driver = loop.run(_driver(kind, plan, handshake, loop))
        handshake.wait(20.0)
        yield driver
        driver.close()
    finally:
        loop.close()


async def _driver(kind: str, plan: OfflinePlan, handshake: Handshake, loop: Loop) -> Driver:
    run_dir = private_directory()
    where = (CLIENT_NAME, EPOCH, run_dir)
    if kind == "sync":
        client = SyncMPClient(*where, on_message=handshake.note)
        engines = start_engines(client, plan, run_dir, handshake, client.fail_engine)
        driver: Driver = SyncDriver(client)
        driver.pids = tuple(engines.pids)
        return driver
    options: dict[str, Any] = {"on_message": handshake.note, "on_hop": lambda record: None}
    async_client: AsyncMPClient = {
        "async": lambda: AsyncMPClient(*where, **options),
        "dp": lambda: DPAsyncMPClient(*where, plan.engine_ids, **options),
        "dplb": lambda: DPLBAsyncMPClient(*where, plan.engine_ids, **options),
    }[kind]()
    event_loop = asyncio.get_running_loop()

    def fail(*what: Any) -> None:
        event_loop.call_soon_threadsafe(async_client.fail_engine, *what)

    engines = start_engines(async_client, plan, run_dir, handshake, fail)
    driver = AsyncDriver(async_client, loop, ANY_ENGINE if kind == "dplb" else "e0")
    driver.pids = tuple(engines.pids)
    return driver


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"
