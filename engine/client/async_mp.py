"""The asyncio client of engine cores in other processes: ROUTER out, PULL in.

It serves one event loop and any number of engines. Every message it sends or gets is counted, and
its half of the hop is reported to `on_hop`.
"""

import asyncio
import logging
import uuid
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec
import zmq

from engine.client.collector import RequestOutputCollector
from engine.client.core_client import (
    AsyncEngineCoreClient,
    EngineDeadError,
    EngineUnreachableError,
    OnMessage,
    UtilityCallError,
    UtilityTimeoutError,
)
from engine.client.hop_halves import received_half, sent_half
from engine.client.resources import BackgroundResources
from engine.client.socket_reader import SocketReader
from engine.clock import now_ns
from engine.wire.addresses import engine_identity, input_address, output_address, parse_identity
from engine.wire.calls import Call
from engine.wire.codec import ENGINE_CODEC, UndecodableError
from engine.wire.header import TraceContext, child_context
from engine.wire.hops import HopLink, HopRecord
from engine.wire.messages import (
    AbortReason,
    AbortRequests,
    AddRequest,
    Body,
    EngineDead,
    EngineOutputs,
    UtilityCall,
    UtilityReply,
)
from engine.wire.sockets import (
    HeaderMaker,
    Incoming,
    MessageCounts,
    bind_pull,
    bind_router,
    is_probe,
    send_frames,
    split,
)

logger = logging.getLogger(__name__)

ResultT = TypeVar("ResultT")


class _PendingCall:
    """A utility call that waits for its reply."""

    def __init__(self, engine_id: str, epoch: int) -> None:
        self.engine_id = engine_id
        self.epoch = epoch
        self.reply: asyncio.Future[UtilityReply] = asyncio.get_running_loop().create_future()


class AsyncMPClient(AsyncEngineCoreClient):
    """Client `name` of the engines that connect to its two sockets in `run_dir`.

    Args:
        name: `supervisor`, `gateway-0`, ...; names the sockets and the sender of its messages.
        epoch: Epoch of this client's process.
        run_dir: Directory of the ipc sockets.
        on_message: Gets everything but outputs and utility replies.
        on_hop: Gets this client's half of every traced hop, and of every fenced message.
    """

    def __init__(
        self,
        name: str,
        epoch: int,
        run_dir: Path,
        *,
        on_message: OnMessage,
        on_hop: Callable[[HopRecord], None],
    ) -> None:
        self.name = name
        self.counts = MessageCounts()
        self._on_message = on_message
        self._on_hop = on_hop
        self.records_hops = True
        """False: halves of hops are not even made."""
        self._headers = HeaderMaker(name, epoch)
        self._epochs: dict[str, int] = {}
        self._collectors: dict[str, RequestOutputCollector] = {}
        self._calls: dict[str, _PendingCall] = {}
        self._connected: dict[bytes, asyncio.Event] = {}
        self._resources: BackgroundResources[zmq.Socket[bytes]] = BackgroundResources(zmq.Context())
        self._finalizer = weakref.finalize(self, self._resources)
        try:
            context = self._resources.context
            own = self._resources.own
            self._router = own(bind_router(context, input_address(run_dir, name)))
            pull = own(bind_pull(context, output_address(run_dir, name)))
            self._from_pull = SocketReader(pull, self._receive)
            self._from_router = SocketReader(self._router, self._receive_identified)
        except BaseException:
            self._finalizer()
            raise

    # ------------------------------------------------------------ life

    async def run(self) -> None:
        """Receive until cancelled; the owner's TaskGroup holds this task."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._from_pull.run())
            tasks.create_task(self._from_router.run())

    def close(self) -> None:
        """Close the sockets and what else was given to it; idempotent. What is in flight fails."""
        self.fail_all("the client was closed")
        self._finalizer()

    async def aclose(self) -> None:
        """As `close`, while the loop goes on: what blocks is done in a thread."""
        self.fail_all("the client was closed")
        await asyncio.to_thread(self._resources.run_callbacks)
        self.close()

    def on_close(self, callback: Callable[[], object]) -> None:
        """Run `callback`, which may not refer to the client, before the sockets are closed."""
        self._resources.on_close(callback)

    # ------------------------------------------------------------ epochs

    def expect(self, engine_id: str, epoch: int) -> None:
        """Accept only `epoch` from this engine; see `EngineCoreClient.expect`."""
        current = self._epochs.get(engine_id)
        if current == epoch:
            return
        if current is not None:
            self.fail_engine(engine_id, current, f"replaced by epoch {epoch}")
        self._epochs[engine_id] = epoch

    def fail_engine(self, engine_id: str, epoch: int, reason: str) -> None:
        """Fail all that is in flight on a dead epoch; see `EngineCoreClient.fail_engine`."""
        if self._epochs.get(engine_id) == epoch:
            del self._epochs[engine_id]
        self._connected.pop(engine_identity(engine_id, epoch), None)
        error = EngineDeadError(engine_id, epoch, reason)
        for request_id, collector in list(self._collectors.items()):
            if collector.engine_id == engine_id and collector.epoch <= epoch:
                self._drop_collector(request_id)
                collector.fail(error)
        for call_id, call in list(self._calls.items()):
            if call.engine_id == engine_id and call.epoch <= epoch:
                del self._calls[call_id]
                if not call.reply.done():
                    call.reply.set_exception(error)

    def fail_all(self, reason: str) -> None:
        """Fail all that is in flight on any engine."""
        for engine_id, epoch in list(self._epochs.items()):
            self.fail_engine(engine_id, epoch, reason)

    async def wait_reachable(self, engine_id: str, timeout_s: float) -> bool:
        """Wait until the expected epoch's DEALER is connected; false after `timeout_s`."""
        epoch = self._epochs.get(engine_id)
        if epoch is None:
            return False
        try:
            async with asyncio.timeout(timeout_s):
                await self._connection(engine_identity(engine_id, epoch)).wait()
        except TimeoutError:
            return False
        return True

    # ------------------------------------------------------------ requests

    def add_request(
        self, engine_id: str, request: AddRequest, context: TraceContext, *, external_id: str
    ) -> RequestOutputCollector:
        """Send a request; see `AsyncEngineCoreClient.add_request`."""
        epoch = self._epoch_of(engine_id)
        collector = RequestOutputCollector(request.request_id, engine_id, epoch)
        self._collectors[request.request_id] = collector
        links = (HopLink(external_id, context),)
        try:
            collector.send_span_id = self._send(engine_id, epoch, request, context, links=links)
        except EngineUnreachableError:
            self.forget(request.request_id)
            raise
        return collector

    def abort(
        self,
        engine_id: str,
        request_ids: tuple[str, ...],
        reason: AbortReason,
        context: TraceContext,
    ) -> None:
        """Ask the engine to end requests; see `EngineCoreClient.abort`."""
        body = AbortRequests(request_ids=request_ids, reason=reason)
        self._send(engine_id, self._epoch_of(engine_id), body, context)

    def abort_client(
        self, engine_id: str, client: str, epoch_below: int, context: TraceContext
    ) -> None:
        """Ask the engine to end every request of a client's older epochs."""
        body = AbortRequests(
            request_ids=(),
            reason=AbortReason.CLIENT_DEAD,
            client=client,
            client_epoch_below=epoch_below,
        )
        self._send(engine_id, self._epoch_of(engine_id), body, context)

    def forget(self, request_id: str) -> None:
        """Drop a request's collector; see `EngineCoreClient.forget`."""
        self._drop_collector(request_id)

    def _drop_collector(self, request_id: str) -> RequestOutputCollector | None:
        return self._collectors.pop(request_id, None)

    async def call(
        self, engine_id: str, call: Call[ResultT], *, timeout_s: float, context: TraceContext
    ) -> ResultT:
        """Run a utility call; see `AsyncEngineCoreClient.call`."""
        epoch = self._epoch_of(engine_id)
        call_id = uuid.uuid4().hex
        pending = self._calls[call_id] = _PendingCall(engine_id, epoch)
        deadline_ns = now_ns() + int(timeout_s * 1e9)
        body = UtilityCall(call_id=call_id, deadline_ns=deadline_ns, call=call)  # pyright: ignore[reportArgumentType] - the closed union of all calls
        try:
            self._send(engine_id, epoch, body, context, call=type(call).__name__)
            async with asyncio.timeout(timeout_s):
                reply = await pending.reply
        except TimeoutError as error:
            name = type(call).__name__
            raise UtilityTimeoutError(f"{name}: no reply within {timeout_s:g} s") from error
        finally:
            self._calls.pop(call_id, None)
        if reply.error is not None:
            raise UtilityCallError(reply.error.code, reply.error.message)
        result: ResultT = msgspec.msgpack.decode(reply.result, type=call.Result)
        return result

    # ------------------------------------------------------------ sending

    def _epoch_of(self, engine_id: str) -> int:
        epoch = self._epochs.get(engine_id)
        if epoch is None:
            raise EngineDeadError(engine_id, 0, "no epoch of it is expected")
        return epoch

    def _send(
        self,
        engine_id: str,
        epoch: int,
        body: Body,
        parent: TraceContext,
        *,
        links: tuple[HopLink, ...] = (),
        call: str | None = None,
    ) -> str:
        """Send one message and report its half of the hop; return the send span's id."""
        start_ns = now_ns()
        context = child_context(parent)
        header = self._headers.make(context, epoch)
        frames = ENGINE_CODEC.encode(header, body)
        identity = engine_identity(engine_id, epoch)
        name = type(body).__name__
        error = self._send_frames(identity, frames)
        if error is None:
            self.counts.sent[name] += 1
        if self.records_hops:
            self._on_hop(
                sent_half(
                    header,
                    name,
                    engine_id,
                    parent,
                    start_ns=start_ns,
                    size_bytes=sum(map(len, frames)),
                    links=links,
                    call=call,
                    error=error,
                )
            )
        if error is not None:
            raise EngineUnreachableError(f"{engine_id} (epoch {epoch}): {error}")
        return context.span_id

    def _send_frames(self, identity: bytes, frames: list[bytes]) -> str | None:
        """Send without blocking; return why the socket refused, or None."""
        try:
            send_frames(self._router, [identity, *frames])
        except zmq.Again:
            return "its queue is full"
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            self._connection(identity).clear()
            return "no route"
        finally:
            self._from_router.look_again()
        return None

    def _connection(self, identity: bytes) -> asyncio.Event:
        return self._connected.setdefault(identity, asyncio.Event())

    # ------------------------------------------------------------ receiving

    def _receive(self, frames: list[bytes], *, identified: bool = False) -> None:
        try:
            incoming = split(frames, ENGINE_CODEC, identified=identified)
        except UndecodableError as error:
            self.counts.undecodable += 1
            logger.warning("dropped frames that are not a message: %s", error)
            return
        self._take(incoming)

    def _receive_identified(self, frames: list[bytes]) -> None:
        self._mark_connected(frames[0])
        if not is_probe(frames):
            self._receive(frames, identified=True)

    def _mark_connected(self, identity: bytes) -> None:
        try:
            engine_id, epoch = parse_identity(identity)
        except ValueError:
            return
        if self._epochs.get(engine_id, epoch) == epoch:
            self._connection(identity).set()

    def _take(self, incoming: Incoming) -> None:
        """Fence, route and count one message; report its half of the hop."""
        header, body = incoming.header, incoming.body
        name = type(body).__name__
        self.counts.received[name] += 1
        dequeued_ns = now_ns()
        if self._epochs.get(header.sender) != header.engine_epoch:
            self.counts.fenced += 1
            if self.records_hops:
                self._on_hop(received_half(incoming, self.name, dequeued_ns, "fenced"))
            return
        try:
            known = self._dispatch(incoming)
        except Exception:
            logger.exception("handling %s of %s failed", name, header.sender)
            known = True
        outcome = "ok" if known else "unknown"
        if self.records_hops:
            self._on_hop(received_half(incoming, self.name, dequeued_ns, outcome))

    def _dispatch(self, incoming: Incoming) -> bool:
        header, body = incoming.header, incoming.body
        engine_id, epoch = header.sender, header.engine_epoch
        match body:
            case EngineOutputs():
                return self._deliver(body, header.sent_ns, incoming.received_ns)
            case UtilityReply():
                pending = self._calls.get(body.call_id)
                if pending is None or pending.reply.done():
                    self.counts.unknown += 1
                    return False
                pending.reply.set_result(body)
            case EngineDead():
                self._on_message(engine_id, epoch, body)
                self.fail_engine(engine_id, epoch, f"{body.reason}: {body.detail}")
            case _:
                self._on_message(engine_id, epoch, body)  # pyright: ignore[reportArgumentType] - the codec decodes only FromEngine here; others are dropped by their handlers
        return True

    def _deliver(self, outputs: EngineOutputs, sent_ns: int, received_ns: int) -> bool:
        delivered = False
        for output in outputs.outputs:
            collector = self._collectors.get(output.request_id)
            if collector is None:
                self.counts.unknown += 1
                continue
            delivered = True
            collector.put(output, sent_ns, received_ns)
            if output.finish_reason is not None:
                self._drop_collector(output.request_id)
        return delivered
