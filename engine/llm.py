"""`LLM`: generate text offline, from a program, without a server.

    from engine.llm import LLM, SamplingParams

    with LLM("models/smollm2.gguf") as llm:
        for result in llm.generate(["The capital of France is"], SamplingParams(max_tokens=8)):
            print(result.text)

The engines run in processes of their own, one for each of `num_engines`, or in this one. Texts,
stops and seeds mean what they mean at the endpoint: the same seed gives the same tokens.
"""

import itertools
import os
import sys
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar, cast

from engine.async_llm import AsyncLLM
from engine.client.balance import Balancer
from engine.client.core_client import EngineClientError
from engine.client.factory import make_client
from engine.client.handshake import Handshake, OnProgress
from engine.offline.batch import BatchRun
from engine.offline.jobs import Extras, Job, seeded
from engine.offline.parameters import SamplingParams, StructuredOutputs
from engine.offline.progress_bar import ProgressBar
from engine.offline.prompts import (
    ChatOptions,
    Message,
    Prompt,
    PromptEncoder,
    PromptError,
    as_prompts,
)
from engine.offline.results import Completion, Delta, Generation
from engine.offline.setup import Setup
from engine.text.tokenizer import Tokenizer
from engine.wire.calls import (
    AdapterList,
    AdapterState,
    Call,
    ListAdapters,
    LoadAdapter,
    Sleep,
    SleepReport,
    UnloadAdapter,
    Wake,
    WakeReport,
)
from engine.wire.header import new_context
from engine.wire.messages import EngineReady

__all__ = [
    "LLM",
    "AsyncLLM",
    "Completion",
    "Delta",
    "Generation",
    "SamplingParams",
    "StructuredOutputs",
]

ResultT = TypeVar("ResultT")
CALL_TIMEOUT_S = 600.0
WINDOW_FACTOR = 2
"""Requests in flight for each place in an engine's batch: the next ones are there in time."""


class LLM:
    """A model with engines of its own. One thread at a time uses it, and no forked process.

    Args:
        model: A directory in Hugging Face layout, or a `.gguf` file.
        multiprocess: Engines in processes of their own; else one in this process, which computes
            only while a method of `LLM` runs.
        num_engines: They share the prompts by load and known prefixes.
        dtype: `bfloat16`, `float32`, `float16`; None: the checkpoint's, else what the device does
            well.
        seed: Makes the runs of a program repeatable: a request that brings no seed gets one by its
            number.
        start_timeout_s: For all engines together.
        log_dir: Keeps the engines' logs, `e0.log`, ...
        on_start_progress: Called with (engine id, `EngineProgress`) while they load.
        options: Fields of `engine.config.EngineConfig`: `device`, `quantization`, `kv_cache_dtype`,
            `kernels`, `num_threads`, `weight_cache_dir`, `max_model_len`, `max_num_seqs`,
            `max_loras`, `speculative_tokens`, ...

    Raises:
        CheckpointError: no such model, or a broken one.
        EngineStartError: an engine did not become ready; says what it was at.
        TypeError: an option that does not exist.
    """

    def __init__(  # noqa: PLR0913 (options of a front end)
        self,
        model: str | Path,
        *,
        multiprocess: bool = True,
        num_engines: int = 1,
        dtype: str | None = None,
        seed: int | None = None,
        start_timeout_s: float = 600.0,
        log_dir: Path | None = None,
        on_start_progress: OnProgress | None = None,
        **options: Any,
    ) -> None:
        setup = Setup(
            num_engines=num_engines, dtype=dtype, start_timeout_s=start_timeout_s, log_dir=log_dir
        )
        plan = setup.plan(model, options)
        self.tokenizer = Tokenizer.load(Path(plan.config.model))
        handshake = Handshake(plan.engine_ids, on_start_progress)
        self._client = make_client(plan, handshake, multiprocess=multiprocess, asyncio=False)
        self.engines: dict[str, EngineReady] = {
            id_: handshake.ready[id_] for id_ in plan.engine_ids
        }
        """What each engine turned out to have room for."""
        self.max_model_len = min(ready.max_model_len for ready in self.engines.values())
        self._encoder = PromptEncoder(self.tokenizer, self.max_model_len)
        self._balancer: Balancer[str] = Balancer()
        self._window = WINDOW_FACTOR * plan.config.max_num_seqs * num_engines
        self._seed = seed
        self._numbers = itertools.count()
        self._is_running = False
        self._pid = os.getpid()

    # ------------------------------------------------------------ life

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the engines; idempotent. An `LLM` that is collected does the same.

        In a forked process it does nothing.
        """
        if os.getpid() == self._pid:
            self._client.close()

    def _refuse_fork(self) -> None:
        if os.getpid() != self._pid:
            raise RuntimeError(
                f"this LLM belongs to process {self._pid}, from which this one was forked: make "
                "one here, or start processes with the method `spawn`"
            )

    # ------------------------------------------------------------ generate

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        adapter: str | None = None,
        priority: int = 0,
    ) -> list[Generation]:
        """Continue prompts; return their results in order.

        A prompt that cannot be used, or that its engine fails on, has an `error` in its result and
        does not hurt the others.

        Args:
            prompts: Text, token ids, or objects: see `engine.offline.prompts.Prompt`.
            sampling_params: For all, or one for each.
            use_tqdm: Draw a progress bar, when stderr is a terminal.
            adapter: Name of a LoRA adapter that was loaded.
            priority: Lower runs first, with the policy `priority`.

        Raises:
            EngineDeadError: an engine died.
            TypeError, ValueError: `sampling_params` are none, or not as many as the prompts.
        """
        many = as_prompts(prompts)
        extras = Extras(adapter=adapter, priority=priority)
        return self._collect(many, _each(sampling_params, len(many)), extras, None, use_tqdm)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        adapter: str | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
    ) -> list[Generation]:
        """Answer one conversation, or each of several, by the model's own chat template.

        Otherwise as `generate`.
        """
        chats = [{"messages": list(chat)} for chat in _as_chats(messages)]
        options = ChatOptions(
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
        )
        params = _each(sampling_params, len(chats))
        return self._collect(chats, params, Extras(adapter=adapter), options, use_tqdm)

    def stream(
        self,
        prompts: Iterable[Prompt],
        sampling_params: SamplingParams | Iterable[SamplingParams] | None = None,
        *,
        adapter: str | None = None,
    ) -> Iterator[tuple[int, Generation]]:
        """Yield (index, result) as prompts are done; prompts are taken as there is room for them.

        A generator that is closed early ends what runs. Only one runs at a time.
        """
        return self._run(prompts, _forever(sampling_params), Extras(adapter=adapter), None)

    def _collect(
        self,
        prompts: Sequence[Prompt],
        params: Iterable[SamplingParams],
        extras: Extras,
        chat: ChatOptions | None,
        use_tqdm: bool,
    ) -> list[Generation]:
        bar = ProgressBar(len(prompts), sys.stderr) if use_tqdm else None
        results: dict[int, Generation] = {}
        try:
            for index, result in self._run(prompts, params, extras, chat):
                results[index] = result
                if bar is not None:
                    bar.add(1, sum(len(output.token_ids) for output in result.outputs))
        finally:
            if bar is not None:
                bar.close()
        return [results[index] for index in range(len(prompts))]

    def _run(
        self,
        prompts: Iterable[Prompt],
        params: Iterable[SamplingParams],
        extras: Extras,
        chat: ChatOptions | None,
    ) -> Iterator[tuple[int, Generation]]:
        self._refuse_fork()
        if self._is_running:
            raise RuntimeError("this LLM generates already: one call at a time")
        self._is_running = True
        try:
            run = BatchRun(
                self._client, list(self.engines), self._balancer, self.tokenizer, self._window
            )
            yield from run.run(self._jobs(prompts, params, extras, chat))
        finally:
            self._is_running = False

    def _jobs(
        self,
        prompts: Iterable[Prompt],
        params: Iterable[SamplingParams],
        extras: Extras,
        chat: ChatOptions | None,
    ) -> Iterator[Job]:
        run_id = uuid.uuid4().hex
        for index, (prompt, own) in enumerate(zip(prompts, params, strict=False)):
            job = Job(
                index=index,
                request_id=f"{run_id}-{index}",
                prompt=None,
                params=seeded(own, self._seed, next(self._numbers)),
                extras=extras,
                bad_words=self._encoder.bad_words(own.bad_words),
            )
            try:
                job.prompt = self._encoder.encode(prompt, chat)
            except PromptError as error:
                job.fault = str(error)
            yield job

    # ------------------------------------------------------------ adapters, sleep

    def load_adapter(self, name: str, path: str | Path, *, pinned: bool = False) -> AdapterState:
        """Load a PEFT LoRA adapter into every engine, or into none.

        Raises:
            UtilityCallError: `invalid`, with what is wrong with it.
        """
        call = LoadAdapter(name=name, path=str(Path(path).absolute()), pinned=pinned)
        loaded: list[str] = []
        states: list[AdapterState] = []
        try:
            for engine_id in self.engines:
                states.append(self._call(engine_id, call))
                loaded.append(engine_id)
        except EngineClientError:
            for engine_id in loaded:
                self._call(engine_id, UnloadAdapter(name=name))
            raise
        return states[0]

    def unload_adapter(self, name: str) -> None:
        """Take an adapter out of every engine. Raises UtilityCallError when there is none."""
        self._call_each(UnloadAdapter(name=name))

    def list_adapters(self) -> AdapterList:
        """Return what is loaded in the first engine; the others have the same."""
        return self._call(next(iter(self.engines)), ListAdapters())

    def sleep(self, level: int = 1) -> dict[str, SleepReport]:
        """Give the engines' memory back; level 2 keeps nothing. Returns a report for each."""
        return self._call_each(Sleep(level=2 if level > 1 else 1, mode="abort"))

    def wake(self) -> dict[str, WakeReport]:
        """Undo `sleep`."""
        return self._call_each(Wake())

    def _call(self, engine_id: str, call: Call[ResultT]) -> ResultT:
        self._refuse_fork()
        return self._client.call(engine_id, call, timeout_s=CALL_TIMEOUT_S, context=new_context())

    def _call_each(self, call: Call[ResultT]) -> dict[str, ResultT]:
        return {engine_id: self._call(engine_id, call) for engine_id in self.engines}


def _each(
    params: SamplingParams | Sequence[SamplingParams] | None, count: int
) -> Iterable[SamplingParams]:
    if params is None or isinstance(params, SamplingParams):
        return itertools.repeat(params or SamplingParams(), count)
    if not all(isinstance(each, SamplingParams) for each in params):  # pyright: ignore[reportUnnecessaryIsInstance] - a user's
        raise TypeError("sampling_params must be SamplingParams, or one for each prompt")
    if len(params) != count:
        raise ValueError(f"{count} prompts, but {len(params)} sampling parameters")
    return params


def _forever(
    params: SamplingParams | Iterable[SamplingParams] | None,
) -> Iterable[SamplingParams]:
    if params is None or isinstance(params, SamplingParams):
        return itertools.repeat(params or SamplingParams())
    return params


def _as_chats(
    messages: Sequence[Message] | Sequence[Sequence[Message]],
) -> Sequence[Sequence[Message]]:
    """One conversation is a list of messages, several are a list of such lists."""
    if all(isinstance(message, Mapping) for message in messages):
        return [cast("Sequence[Message]", messages)] if messages else []
    if any(isinstance(chat, str | Mapping) for chat in messages):
        raise TypeError("a conversation is a list of messages, objects with role and content")
    return cast("Sequence[Sequence[Message]]", messages)
