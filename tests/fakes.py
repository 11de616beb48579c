"""An engine without a model: real sockets, real messages, tokens that a test can predict."""

import asyncio
import contextlib
import hashlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import zmq
import zmq.asyncio

from engine.clock import now_ns
from engine.config import EngineConfig
from engine.wire.addresses import engine_identity
from engine.wire.calls import (
    AdapterList,
    AdapterState,
    AdapterUnloaded,
    CacheReset,
    DumpState,
    EngineState,
    ListAdapters,
    LoadAdapter,
    PinAdapter,
    Ping,
    Pong,
    RecordingSet,
    ResetPrefixCache,
    SetRecording,
    Sleep,
    SleepReport,
    UnloadAdapter,
    Wake,
    WakeReport,
)
from engine.wire.codec import ENGINE_CODEC, UndecodableError
from engine.wire.header import Header, TraceContext, child_context, new_context
from engine.wire.hops import HopLink, HopReceived, HopRecord, HopSent, StepRecord
from engine.wire.messages import (
    AbortRequests,
    AddRequest,
    Body,
    EngineDead,
    EngineHello,
    EngineOutputs,
    EngineProgress,
    EngineReady,
    EngineRecords,
    EngineStats,
    FinishReason,
    Heartbeat,
    PrefillChunk,
    RequestError,
    RequestOutput,
    Timeline,
    TokenLogprob,
    TokenLogprobs,
    UtilityCall,
    UtilityError,
    UtilityReply,
)
from engine.wire.sockets import HeaderMaker, MessageCounts, connect_dealer, connect_push, split

logger = logging.getLogger(__name__)

WEIGHTS_BYTES = 1 << 20
NUM_BLOCKS = 64


def echo(request: AddRequest, index: int) -> int:
    """Token `index` of the answer: the prompt, over and over."""
    return request.prompt_token_ids[index % len(request.prompt_token_ids)]


@dataclass
class _Live:
    request: AddRequest
    header: Header
    client: int
    received_ns: int
    output: list[int] = field(default_factory=list)
    scheduled_ns: int | None = None
    first_token_ns: int | None = None
    last_token_ns: int | None = None
    first_step: int | None = None
    abort: str | None = None


class FakeAdapters:
    """Adapters without weights; the content hash is that of the directory's files.

    A name in `refused` is refused with the text that stands there.
    """

    def __init__(self) -> None:
        self.held: dict[str, AdapterState] = {}
        self.refused: dict[str, str] = {}
        self.calls: list[str] = []

    def answer(self, call: object) -> tuple[object, UtilityError | None]:
        """Answer one of the four calls."""
        name = getattr(call, "name", "")
        self.calls.append(f"{type(call).__name__} {name}".strip())
        refusal = self.refused.get(name) if isinstance(call, LoadAdapter | PinAdapter) else None
        result = self._result(call, name) if refusal is None else None
        if result is not None:
            return result, None
        message = refusal or f"nothing is loaded as {name}"
        return None, UtilityError(code="invalid", message=message)

    def _result(self, call: object, name: str) -> object:
        match call:
            case LoadAdapter():
                return self._load(call)
            case ListAdapters():
                states = tuple(self.held.values())
                return AdapterList(adapters=states, max_loras=8, max_cpu_loras=32)
            case PinAdapter(pinned=pinned) if name in self.held:
                self.held[name] = msgspec.structs.replace(self.held[name], pinned=pinned)
                return self.held[name]
            case UnloadAdapter() if self.held.pop(name, None) is not None:
                return AdapterUnloaded(name=name, running_requests=0)
        return None

    def _load(self, call: LoadAdapter) -> AdapterState:
        files = sorted(path for path in Path(call.path).iterdir() if path.is_file())
        content = hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()
        state = self.held[call.name] = AdapterState(
            name=call.name,
            content_hash=content,
            path=call.path,
            rank=8,
            num_bytes=1000,
            targets=("q_proj", "v_proj"),
            pinned=call.pinned,
            active=True,
            running_requests=0,
            loaded_ns=now_ns(),
        )
        return state


class FakeEngine:
    """Speaks the engine's side of the wire in the event loop of the test.

    Args:
        config: As for a real engine; `model` is not opened.
        next_token: Token `index` of a request's answer; `echo` by default.
        step_s: Pause between steps.
        eos_token_id: Ends a request, unless it ignores it.
        ready_ms: Time between hello and ready.
    """

    def __init__(
        self,
        config: EngineConfig,
        *,
        next_token: Callable[[AddRequest, int], int] = echo,
        step_s: float = 0.002,
        eos_token_id: int | None = None,
        ready_ms: int = 0,
    ) -> None:
        self.config = config
        self.step = 0
        self.sleep_level = 0
        self.recording = True
        self.received: list[AddRequest] = []
        self.aborts: list[AbortRequests] = []
        self.counts = MessageCounts()
        self.adapters = FakeAdapters()
        self.may_step = asyncio.Event()
        """Cleared: requests wait in the queue."""
        self.may_step.set()
        self.amend: Callable[[AddRequest, RequestOutput], RequestOutput] = lambda _, output: output
        """Changes every output before it is sent; one that it ends is the request's last."""
        self._next_token = next_token
        self._step_s = step_s
        self._eos = eos_token_id
        self._ready_ms = ready_ms
        self._headers = HeaderMaker(config.engine_id, config.epoch)
        self._live: dict[str, _Live] = {}
        self._work = asyncio.Event()
        self._hops: list[HopRecord] = []
        self._steps: list[StepRecord] = []
        self._context = zmq.asyncio.Context()
        identity = engine_identity(config.engine_id, config.epoch)
        self._dealers = [connect_dealer(self._context, c.input, identity) for c in config.clients]
        self._pushes = [connect_push(self._context, c.output, 200) for c in config.clients]

    async def run(self) -> None:
        """Hello, ready, then serve until cancelled."""
        try:
            await self._start()
            async with asyncio.TaskGroup() as tasks:
                for index, dealer in enumerate(self._dealers):
                    tasks.create_task(self._receive(index, dealer))
                tasks.create_task(self._loop())
                tasks.create_task(self._beat())
        finally:
            self._context.destroy(linger=0)

    async def die(self, reason: str = "internal_error") -> None:
        """Say the last words; the test then cancels `run`."""
        for index in range(len(self._pushes)):
            await self._send(index, EngineDead(reason=reason, detail="asked to"), new_context())

    @property
    def live_requests(self) -> set[str]:
        return set(self._live)

    async def _start(self) -> None:
        config = self.config
        hello = EngineHello(
            engine_id=config.engine_id, epoch=config.epoch, pid=0, started_ns=now_ns()
        )
        for dealer in self._dealers:
            header = self._headers.make(new_context(), config.epoch)
            await dealer.send_multipart(ENGINE_CODEC.encode(header, hello))
        for index in range(len(self._pushes)):
            await self._send(index, EngineProgress(phase="weights", done=1, total=2), new_context())
        await asyncio.sleep(self._ready_ms / 1e3)
        for index in range(len(self._pushes)):
            await self._send(index, self._ready(), new_context())

    def _ready(self) -> EngineReady:
        return EngineReady(
            model=self.config.model_name,
            architecture="fake",
            max_model_len=self.config.max_model_len or 512,
            num_blocks=NUM_BLOCKS,
            block_size=self.config.block_size,
            vocab_size=512,
            dtype="float32",
            device="cpu",
            kernel_backend="fake",
            kernel_path="fake-isa",
            kernel_reason="there is no other",
            quantization="w4",
            quantization_reason="as the file holds them",
            kv_cache_dtype="int8",
            weight_cache="hit",
            num_threads=2,
            weights_bytes=WEIGHTS_BYTES,
            kv_cache_bytes=WEIGHTS_BYTES,
            resident_bytes=3 * WEIGHTS_BYTES,
        )

    # ---------------------------------------------------------- in

    async def _receive(self, index: int, dealer: zmq.asyncio.Socket) -> None:
        while True:
            frames = await dealer.recv_multipart()
            try:
                incoming = split(frames, ENGINE_CODEC)
            except UndecodableError:
                self.counts.undecodable += 1
                continue
            header, body = incoming.header, incoming.body
            name = type(body).__name__
            self.counts.received[name] += 1
            if header.engine_epoch != self.config.epoch:
                self.counts.fenced += 1
                continue
            dequeued_ns = now_ns()
            await self._handle(index, header, body)
            self._hops.append(
                HopReceived(
                    sender=header.sender,
                    sender_epoch=header.sender_epoch,
                    sequence=header.sequence,
                    message=name,
                    receiver=self.config.engine_id,
                    received_ns=incoming.received_ns,
                    dequeued_ns=dequeued_ns,
                    done_ns=now_ns(),
                    sent_ns=header.sent_ns,
                )
            )

    async def _handle(self, index: int, header: Header, body: Body) -> None:
        match body:
            case AddRequest():
                self.received.append(body)
                if self.sleep_level:
                    await self._reject(index, header, body)
                elif body.adapter is not None and body.adapter not in self.adapters.held:
                    await self._miss_adapter(index, header, body)
                else:
                    self._live[body.request_id] = _Live(body, header, index, now_ns())
            case AbortRequests():
                self.aborts.append(body)
                self._abort(body)
            case UtilityCall():
                await self._utility(index, header, body)
            case _:
                self.counts.unknown += 1
        self._work.set()

    async def _reject(self, index: int, header: Header, body: AddRequest) -> None:
        error = RequestError(code="engine_asleep", message="the engine is asleep")
        output = RequestOutput(
            request_id=body.request_id, finish_reason=FinishReason.REJECTED, error=error
        )
        await self._send(index, EngineOutputs(step=self.step, outputs=(output,)), header.context)

    async def _miss_adapter(self, index: int, header: Header, body: AddRequest) -> None:
        error = RequestError(code="adapter_not_loaded", message="no such adapter is loaded")
        output = RequestOutput(
            request_id=body.request_id, finish_reason=FinishReason.ERROR, error=error
        )
        await self._send(index, EngineOutputs(step=self.step, outputs=(output,)), header.context)

    def _abort(self, body: AbortRequests) -> None:
        for live in self._live.values():
            old = (
                body.client is not None
                and live.header.sender == body.client
                and live.header.sender_epoch < (body.client_epoch_below or 0)
            )
            if old or live.request.request_id in body.request_ids:
                live.abort = body.reason

    async def _utility(self, index: int, header: Header, body: UtilityCall) -> None:
        name = type(body.call).__name__
        error = None
        result: object = None
        match body.call:
            case Sleep(level=level, mode=mode):
                if mode == "abort":
                    for live in self._live.values():
                        live.abort = "sleep"
                while self._live:
                    await asyncio.sleep(0.001)
                    if self.may_step.is_set():
                        await self._one_step()
                self.sleep_level = level
                result = SleepReport(
                    level=level,
                    resident_before_bytes=3 * WEIGHTS_BYTES,
                    resident_after_bytes=WEIGHTS_BYTES,
                    freed_bytes=2 * WEIGHTS_BYTES,
                    took_ns=1000,
                    weights_bytes=WEIGHTS_BYTES,
                )
            case Wake():
                self.sleep_level = 0
                result = WakeReport(resident_bytes=3 * WEIGHTS_BYTES, took_ns=1000, canary_ok=True)
            case Ping(deep=deep):
                if deep and self.sleep_level:
                    error = UtilityError(code="invalid", message="asleep")
                result = Pong(token_id=1 if deep else None, took_ns=1000)
            case ResetPrefixCache():
                result = CacheReset(dropped_blocks=3)
            case SetRecording(recording=recording):
                self.recording = recording
                result = RecordingSet(recording=recording)
            case LoadAdapter() | UnloadAdapter() | PinAdapter() | ListAdapters():
                result, error = self.adapters.answer(body.call)
            case DumpState():
                result = EngineState(
                    phase="idle",
                    step=self.step,
                    sleep_level=self.sleep_level,  # type: ignore[arg-type]
                    num_blocks=NUM_BLOCKS,
                    free_blocks=NUM_BLOCKS - len(self._live),
                    requests=(),
                )
        raw = msgspec.Raw(msgspec.msgpack.encode(result))
        reply = UtilityReply(call_id=body.call_id, error=error, result=raw)
        await self._send(index, reply, header.context, call=name)

    # ---------------------------------------------------------- out

    async def _loop(self) -> None:
        while True:
            await self._work.wait()
            await self.may_step.wait()
            if not self._live:
                self._work.clear()
                continue
            await self._one_step()
            await asyncio.sleep(self._step_s)

    async def _one_step(self) -> None:
        self.step += 1
        start_ns = now_ns()
        context = new_context()
        outputs: dict[int, list[RequestOutput]] = {}
        links: dict[int, list[HopLink]] = {}
        for request_id, live in list(self._live.items()):
            outputs.setdefault(live.client, []).append(self._output(live, start_ns))
            links.setdefault(live.client, []).append(HopLink(request_id, live.header.context))
        for index, rows in outputs.items():
            body = EngineOutputs(step=self.step, outputs=tuple(rows))
            await self._send(index, body, context, links=tuple(links[index]))
        end_ns = now_ns()
        self._steps.append(
            StepRecord(
                engine_id=self.config.engine_id,
                epoch=self.config.epoch,
                step=self.step,
                trace_id=context.trace_id,
                span_id=context.span_id,
                start_ns=start_ns,
                scheduled_ns=start_ns,
                executed_ns=end_ns,
                end_ns=end_ns,
                prefill_tokens=0,
                decode_tokens=sum(map(len, outputs.values())),
                requests=sum(map(len, outputs.values())),
                used_blocks=len(self._live),
                preempted=0,
            )
        )

    def _output(self, live: _Live, start_ns: int) -> RequestOutput:
        request, output = live.request, self._advance(live, start_ns)
        if len(live.output) == 1 and request.sampling.prompt_logprobs is not None:
            scored = self._entries(request.prompt_token_ids[1:], request.sampling.prompt_logprobs)
            output = msgspec.structs.replace(output, prompt_logprobs=scored)
        output = self.amend(request, output)
        if output.finish_reason is not None:
            self._live.pop(request.request_id, None)
        return output

    def _advance(self, live: _Live, start_ns: int) -> RequestOutput:
        request = live.request
        live.scheduled_ns = live.scheduled_ns or start_ns
        live.first_step = live.first_step or self.step
        if live.abort is not None:
            return self._finish(live, (), FinishReason.ABORT)
        token = self._next_token(request, len(live.output))
        live.output.append(token)
        live.last_token_ns = now_ns()
        live.first_token_ns = live.first_token_ns or live.last_token_ns
        stops = request.sampling.stop_token_ids
        is_end = token in stops or (token == self._eos and not request.sampling.ignore_eos)
        if is_end and len(live.output) > request.sampling.min_tokens:
            return self._finish(live, (token,), FinishReason.STOP)
        if len(live.output) >= request.sampling.max_tokens:
            return self._finish(live, (token,), FinishReason.LENGTH)
        timeline = self._timeline(live) if len(live.output) == 1 else None
        return RequestOutput(
            request_id=request.request_id,
            new_token_ids=(token,),
            logprobs=self._logprobs(request, (token,)),
            timeline=timeline,
        )

    def _finish(self, live: _Live, tokens: tuple[int, ...], reason: FinishReason) -> RequestOutput:
        del self._live[live.request.request_id]
        error = None
        if live.abort == "sleep":
            error = RequestError(code="engine_asleep", message="the engine went to sleep")
        return RequestOutput(
            request_id=live.request.request_id,
            new_token_ids=tokens,
            logprobs=self._logprobs(live.request, tokens),
            finish_reason=reason,
            stop_token_id=tokens[-1] if reason is FinishReason.STOP else None,
            error=error,
            timeline=msgspec.structs.replace(self._timeline(live), finished_ns=now_ns()),
        )

    def _logprobs(
        self, request: AddRequest, tokens: tuple[int, ...]
    ) -> tuple[TokenLogprobs, ...] | None:
        count = request.sampling.logprobs
        return None if count is None else self._entries(tokens, count)

    @staticmethod
    def _entries(tokens: tuple[int, ...], count: int) -> tuple[TokenLogprobs, ...]:
        top = range(count)
        return tuple(
            TokenLogprobs(
                token_id=token,
                logprob=-0.5,
                top=tuple(TokenLogprob(token_id=(token + k) % 512, logprob=-0.5 - k) for k in top),
            )
            for token in tokens
        )

    def _timeline(self, live: _Live) -> Timeline:
        chunk = PrefillChunk(
            start_ns=live.scheduled_ns or 0,
            end_ns=live.first_token_ns or live.scheduled_ns or 0,
            tokens=len(live.request.prompt_token_ids),
            step=live.first_step or 0,
        )
        return Timeline(
            received_ns=live.received_ns,
            scheduled_ns=live.scheduled_ns,
            first_token_ns=live.first_token_ns,
            last_token_ns=live.last_token_ns,
            first_step=live.first_step,
            last_step=self.step,
            chunks=(chunk,),
            max_batch=len(self._live) + 1,
        )

    async def _beat(self) -> None:
        while True:
            beat = Heartbeat(
                step=self.step,
                phase="asleep" if self.sleep_level else "step" if self._live else "idle",
                running=len(self._live),
                waiting=0,
                last_token_ns=None,
            )
            await self._send(0, beat, new_context())
            await self._send(0, self._stats(), new_context())
            hops, self._hops = self._hops, []
            steps, self._steps = self._steps, []
            records = EngineRecords(hops=tuple(hops), steps=tuple(steps), dropped=0)
            await self._send(0, records, new_context())
            await asyncio.sleep(0.05)

    def _stats(self) -> EngineStats:
        return EngineStats(
            step=self.step,
            running=len(self._live),
            waiting=0,
            sleep_level=self.sleep_level,
            num_blocks=NUM_BLOCKS,
            used_blocks=len(self._live),
            resident_bytes=WEIGHTS_BYTES if self.sleep_level else 3 * WEIGHTS_BYTES,
            prompt_tokens=sum(len(r.prompt_token_ids) for r in self.received),
            generation_tokens=self.step,
            cached_tokens=0,
            preemptions=0,
            finished={},
            sent=dict(self.counts.sent),
            received=dict(self.counts.received),
            fenced=self.counts.fenced,
            undecodable=self.counts.undecodable,
            clients_cut_off=0,
            records_dropped=0,
            step_seconds=0.0,
        )

    async def _send(
        self,
        index: int,
        body: Body,
        parent: TraceContext,
        *,
        links: tuple[HopLink, ...] = (),
        call: str | None = None,
    ) -> None:
        name = type(body).__name__
        start_ns = now_ns()
        context = child_context(parent)
        header = self._headers.make(context, self.config.epoch)
        frames = ENGINE_CODEC.encode(header, body)
        must_arrive = not isinstance(body, Heartbeat | EngineStats | EngineProgress)
        with contextlib.suppress(zmq.Again, TimeoutError):  # a client that is not there misses it
            async with asyncio.timeout(1.0):
                flags = 0 if must_arrive else zmq.NOBLOCK
                await self._pushes[index].send_multipart(frames, flags=flags)
            self.counts.sent[name] += 1
        if not isinstance(body, EngineOutputs | UtilityReply):
            return
        self._hops.append(
            HopSent(
                sender=self.config.engine_id,
                sender_epoch=self.config.epoch,
                sequence=header.sequence,
                message=name,
                destination=self.config.clients[index].name,
                trace_id=context.trace_id,
                span_id=context.span_id,
                parent_id=parent.span_id,
                flags=context.flags,
                start_ns=start_ns,
                sent_ns=header.sent_ns,
                size_bytes=sum(map(len, frames)),
                links=links,
                call=call,
            )
        )
