"""`AsyncLLM`: the offline engine for an event loop; answers come as they are made.

async with AsyncLLM("models/smollm2.gguf") as llm:
    async for delta in llm.generate("The capital of France is", SamplingParams(max_tokens=8)):
        print(delta.text, end="")
"""

import asyncio
import logging
import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

from engine.client.collector import RequestOutputCollector
from engine.client.core_client import EngineClientError, EngineStartError
from engine.client.dp import ANY_ENGINE, DPLBAsyncMPClient
from engine.client.factory import make_client
from engine.client.handshake import Handshake, OnProgress
from engine.offline.jobs import Extras, Job, fault_of
from engine.offline.parameters import SamplingParams
from engine.offline.prompts import ChatOptions, Message, Prompt, PromptEncoder
from engine.offline.results import Delta
from engine.offline.setup import Setup
from engine.text.answer import Answer
from engine.text.tokenizer import Tokenizer
from engine.wire.calls import (
    AdapterState,
    Call,
    LoadAdapter,
    Sleep,
    SleepReport,
    UnloadAdapter,
    Wake,
    WakeReport,
)
from engine.wire.header import new_context
from engine.wire.messages import AbortReason, EngineReady, RequestOutput

logger = logging.getLogger(__name__)

ResultT = TypeVar("ResultT")
CALL_TIMEOUT_S = 600.0
Came = tuple[int, RequestOutput | EngineClientError]


class AsyncLLM:
    """A model with engines of its own, in processes, for one event loop: an async context manager.

    Args:
        model: A directory in Hugging Face layout, or a `.gguf` file.
        num_engines: They share the requests by load and known prefixes.
        dtype: As `LLM`, like the others.
        start_timeout_s: For all engines together.
        log_dir: Keeps the engines' logs.
        on_start_progress: Called while they load.
        options: Fields of `engine.config.EngineConfig`.

    Raises:
        TypeError: an option that does not exist. Entering it raises what `LLM` does.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        num_engines: int = 1,
        dtype: str | None = None,
        start_timeout_s: float = 600.0,
        log_dir: Path | None = None,
        on_start_progress: OnProgress | None = None,
        **options: Any,
    ) -> None:
        setup = Setup(
            num_engines=num_engines, dtype=dtype, start_timeout_s=start_timeout_s, log_dir=log_dir
        )
        self._plan = setup.plan(model, options)
        self._handshake = Handshake(self._plan.engine_ids, on_start_progress)
        self._stack = AsyncExitStack()
        self._tasks = asyncio.TaskGroup()
        self._started: tuple[DPLBAsyncMPClient, PromptEncoder] | None = None

    # ------------------------------------------------------------ life

    async def __aenter__(self) -> Self:
        plan, handshake = self._plan, self._handshake
        async with AsyncExitStack() as stack:
            tokenizer = await asyncio.to_thread(Tokenizer.load, Path(plan.config.model))
            client = make_client(plan, handshake, multiprocess=True, asyncio=True)
            stack.push_async_callback(client.aclose)
            stack.callback(handshake.give_up)
            await stack.enter_async_context(self._tasks)
            receiving = self._tasks.create_task(client.run())
            stack.callback(receiving.cancel)
            problem = await asyncio.to_thread(_start_error, handshake, plan.start_timeout_s)
            if problem is None:
                max_model_len = min(ready.max_model_len for ready in handshake.ready.values())
                self._started = client, PromptEncoder(tokenizer, max_model_len)
                self._stack = stack.pop_all()
                return self
        raise problem  # not in the stack, whose task group would make it an ExceptionGroup

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        client, _ = self._running()
        client.fail_all("the client was closed")  # whoever still reads learns of it
        await self._stack.aclose()

    @property
    def engines(self) -> dict[str, EngineReady]:
        """What each engine turned out to have room for."""
        return self._handshake.ready

    @property
    def client(self) -> DPLBAsyncMPClient:
        """The client of the engines, for calls that have no method here."""
        return self._running()[0]

    def _running(self) -> tuple[DPLBAsyncMPClient, PromptEncoder]:
        if self._started is None:
            raise RuntimeError("AsyncLLM is an async context manager: `async with AsyncLLM(...)`")
        return self._started

    # ------------------------------------------------------------ generate

    def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        *,
        adapter: str | None = None,
        priority: int = 0,
    ) -> AsyncGenerator[Delta, None]:
        """Continue a prompt; yields what has come of its answers since the last time.

        Closing the generator aborts the request. The deltas of one answer are its text in order;
        with `n` answers they mix, and each has its last one.

        Raises:
            PromptError: of no known shape, empty, or too long.
            EngineDeadError: the engine died.
        """
        extras = Extras(adapter=adapter, priority=priority)
        return self._generate(prompt, sampling_params or SamplingParams(), extras, ChatOptions())

    def chat(
        self,
        messages: Sequence[Message],
        sampling_params: SamplingParams | None = None,
        *,
        adapter: str | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
    ) -> AsyncGenerator[Delta, None]:
        """Answer a conversation by the model's own chat template; otherwise as `generate`."""
        options = ChatOptions(
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
        )
        prompt = {"messages": list(messages)}
        params = sampling_params or SamplingParams()
        return self._generate(prompt, params, Extras(adapter=adapter), options)

    async def _generate(
        self, prompt: Prompt, params: SamplingParams, extras: Extras, chat: ChatOptions
    ) -> AsyncGenerator[Delta, None]:
        client, encoder = self._running()
        encoded = await asyncio.to_thread(encoder.encode, prompt, chat)
        job = Job(
            index=0,
            request_id=uuid.uuid4().hex,
            prompt=encoded,
            params=params,
            extras=extras,
            bad_words=encoder.bad_words(params.bad_words),
        )
        flight = _Flight(client, job)
        try:
            flight.send(self._tasks)
            answers = [
                Answer(encoder.tokenizer, encoded.token_ids, params.rules())
                for _ in range(params.n)
            ]
            while flight.is_open:
                choice, output = await flight.get()
                delta = answers[choice].push(output)
                if delta.is_cut:
                    flight.end(choice, AbortReason.STOP_STRING)
                error = fault_of(output)
                yield Delta(
                    index=choice,
                    text=delta.text,
                    token_ids=delta.token_ids,
                    logprobs=None if params.logprobs is None else delta.logprobs,
                    finish_reason="error" if error is not None else delta.finish_reason,
                    stop_reason=delta.stop_reason,
                    error=error,
                )
        finally:
            flight.close()

    # ------------------------------------------------------------ adapters, sleep

    async def load_adapter(
        self, name: str, path: str | Path, *, pinned: bool = False
    ) -> dict[str, AdapterState]:
        """Load a PEFT LoRA adapter into every engine, or into none. Raises UtilityCallError."""
        call = LoadAdapter(name=name, path=str(Path(path).absolute()), pinned=pinned)  # noqa: ASYNC240 - no file is touched
        states: dict[str, AdapterState] = {}
        try:
            for engine_id in self.client.live_engine_ids:
                states[engine_id] = await self._call(engine_id, call)
        except EngineClientError:
            for engine_id in states:
                await self._call(engine_id, UnloadAdapter(name=name))
            raise
        return states

    async def unload_adapter(self, name: str) -> None:
        """Take an adapter out of every engine. Raises UtilityCallError when there is none."""
        call = UnloadAdapter(name=name)
        await self.client.call_each(call, timeout_s=CALL_TIMEOUT_S, context=new_context())

    async def _call(self, engine_id: str, call: Call[ResultT]) -> ResultT:
        return await self.client.call(
            engine_id, call, timeout_s=CALL_TIMEOUT_S, context=new_context()
        )

    async def sleep(
        self, level: int = 1, mode: Literal["wait", "abort"] = "wait"
    ) -> dict[str, SleepReport]:
        """Give the engines' memory back, after or instead of what runs."""
        call = Sleep(level=2 if level > 1 else 1, mode=mode)
        return await self.client.call_each(call, timeout_s=CALL_TIMEOUT_S, context=new_context())

    async def wake(self) -> dict[str, WakeReport]:
        """Undo `sleep`."""
        return await self.client.call_each(Wake(), timeout_s=CALL_TIMEOUT_S, context=new_context())


def _start_error(handshake: Handshake, timeout_s: float) -> EngineStartError | None:
    try:
        handshake.wait(timeout_s)
    except EngineStartError as error:
        return error
    return None


class _Flight:
    """The requests of one prompt, from `send` to `close`."""

    def __init__(self, client: DPLBAsyncMPClient, job: Job) -> None:
        self._client = client
        self._job = job
        self._context = new_context()
        self._collectors: dict[int, RequestOutputCollector] = {}
        """Of the answers that have not ended."""
        self._readers: list[asyncio.Task[None]] = []
        self._came: asyncio.Queue[Came] = asyncio.Queue()

    @property
    def is_open(self) -> bool:
        """Whether more comes."""
        return bool(self._collectors)

    def send(self, tasks: asyncio.TaskGroup) -> None:
        """Send all; several answers are read by a task each."""
        for choice, request in enumerate(self._job.requests()):
            self._collectors[choice] = self._client.add_request(
                ANY_ENGINE, request, self._context, external_id=self._job.request_id
            )
        if len(self._collectors) > 1:
            for choice, collector in self._collectors.items():
                reading = _read(choice, collector, self._came)
                self._readers.append(tasks.create_task(reading))

    async def get(self) -> tuple[int, RequestOutput]:
        """Return what has come, with its choice. Raises EngineDeadError."""
        while True:
            choice, output = await self._next()
            if choice in self._collectors:
                if output.finish_reason is not None:
                    del self._collectors[choice]
                return choice, output

    async def _next(self) -> tuple[int, RequestOutput]:
        if not self._readers:
            return 0, await self._collectors[0].get()
        choice, what = await self._came.get()
        if isinstance(what, EngineClientError):
            raise what
        return choice, what

    def end(self, choice: int, reason: AbortReason) -> None:
        """Have no more of an answer."""
        collector = self._collectors.pop(choice, None)
        if collector is None:
            return
        self._client.forget(collector.request_id)
        try:
            self._client.abort(collector.engine_id, (collector.request_id,), reason, self._context)
        except EngineClientError as error:
            logger.debug("an abort was not sent: %s", error)

    def close(self) -> None:
        """End what has not ended."""
        for choice in list(self._collectors):
            self.end(choice, AbortReason.CLIENT_DISCONNECTED)
        for reader in self._readers:
            reader.cancel()


async def _read(
    choice: int, collector: RequestOutputCollector, came: "asyncio.Queue[Came]"
) -> None:
    try:
        while True:
            output = await collector.get()
            await came.put((choice, output))
            if output.finish_reason is not None:
                return
    except EngineClientError as error:
        await came.put((choice, error))
