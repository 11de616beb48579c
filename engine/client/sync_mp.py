"""The synchronous client of engine cores in other processes: ROUTER out, a thread on the PULL.

The thread owns the output socket: it alone touches it, from its start to its end, and it ends when
it is told so through an inproc PAIR.
"""

import logging
import threading
import time
import uuid
import weakref
from collections.abc import Callable
from concurrent.futures import TimeoutError as FutureTimeoutError
from pathlib import Path
from typing import TypeVar

import msgspec
import zmq

from engine.client.core_client import (
    EngineUnreachableError,
    OnMessage,
    SyncEngineCoreClient,
    UtilityCallError,
    UtilityTimeoutError,
)
from engine.client.hop_halves import ReceivedOutcome, received_half, sent_half
from engine.client.reply_desk import ReplyDesk
from engine.client.resources import BackgroundResources
from engine.clock import now_ns
from engine.wire.addresses import engine_identity, input_address, output_address
from engine.wire.calls import Call
from engine.wire.codec import ENGINE_CODEC, UndecodableError
from engine.wire.header import TraceContext, child_context
from engine.wire.hops import HopLink, HopRecord
from engine.wire.messages import (
    AbortReason,
    AbortRequests,
    AddRequest,
    Body,
    RequestOutput,
    UtilityCall,
    UtilityReply,
)
from engine.wire.sockets import (
    HeaderMaker,
    Incoming,
    MessageCounts,
    bind_pull,
    bind_router,
    split,
)

logger = logging.getLogger(__name__)

ResultT = TypeVar("ResultT")
OnHop = Callable[[HopRecord], None]

JOIN_S = 5.0
REACHABLE_S = 2.0
"""How long a send waits for a socket that has no route yet, or whose queue is full."""
RETRY_S = 0.01


def ignore_hop(_record: HopRecord) -> None:
    """Take no interest in hops."""


class SyncMPClient(SyncEngineCoreClient):
    """Client `name` of the engines that connect to its two sockets in `run_dir`.

    One thread at a time uses it; `call`, `abort` and `close` may come from another one.

    Args:
        name: Names the sockets and the sender of its messages.
        epoch: Epoch of this client.
        run_dir: Directory of the ipc sockets.
        on_message: Gets everything but outputs and utility replies, in the receiving thread. It may
            not refer to the client.
        on_hop: Gets this client's half of every traced hop; the same holds.
    """

    def __init__(
        self,
        name: str,
        epoch: int,
        run_dir: Path,
        *,
        on_message: OnMessage,
        on_hop: OnHop = ignore_hop,
    ) -> None:
        self.name = name
        self._desk = ReplyDesk(on_message)
        self._on_hop = on_hop
        self._headers = HeaderMaker(name, epoch)
        self._sending = threading.Lock()
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._resources = BackgroundResources(context)
        self._finalizer = weakref.finalize(self, self._resources)
        try:
            self._router = self._resources.own(bind_router(context, input_address(run_dir, name)))
            pull = self._resources.own(bind_pull(context, output_address(run_dir, name)))
            self._start_receiving(context, pull)
        except BaseException:
            self._finalizer()
            raise

    def _start_receiving(
        self, context: "zmq.Context[zmq.Socket[bytes]]", pull: "zmq.Socket[bytes]"
    ) -> None:
        own, address = self._resources.own, f"inproc://{uuid.uuid4().hex}"
        stop, stopped = own(context.socket(zmq.PAIR)), own(context.socket(zmq.PAIR))
        stop.bind(address)
        stopped.connect(address)
        thread = OutputThread(self.name, (pull, stopped), self._desk, self._on_hop)
        thread.start()
        self._resources.hand_over(pull)
        self._resources.hand_over(stopped)
        self._resources.on_close(lambda: _end(thread, stop))

    # ------------------------------------------------------------ life

    @property
    def counts(self) -> MessageCounts:
        """What its sockets took and gave."""
        return self._desk.counts

    def on_close(self, callback: Callable[[], object]) -> None:
        """Run `callback`, which may not refer to the client, before the sockets are closed."""
        self._resources.on_close(callback)

    def close(self) -> None:
        """Close everything; see `EngineCoreClient.close`."""
        self._desk.fail_all("the client was closed")
        self._finalizer()

    def expect(self, engine_id: str, epoch: int) -> None:
        """Accept only `epoch` from this engine; see `EngineCoreClient.expect`."""
        self._desk.expect(engine_id, epoch)

    def fail_engine(self, engine_id: str, epoch: int, reason: str) -> None:
        """Fail all that is in flight on a dead epoch; see `EngineCoreClient.fail_engine`."""
        self._desk.fail_engine(engine_id, epoch, reason)

    # ------------------------------------------------------------ requests

    def add_request(
        self, engine_id: str, request: AddRequest, context: TraceContext, *, external_id: str
    ) -> None:
        """Send a request; see `SyncEngineCoreClient.add_request`."""
        epoch = self._desk.open_request(request.request_id, engine_id)
        links = (HopLink(external_id, context),)
        try:
            self._send(engine_id, epoch, request, context, links=links)
        except BaseException:
            self._desk.forget(request.request_id)
            raise

    def get_outputs(self, timeout_s: float) -> list[RequestOutput]:
        """Return what has come; see `SyncEngineCoreClient.get_outputs`."""
        return self._desk.get_outputs(timeout_s)

    def abort(
        self,
        engine_id: str,
        request_ids: tuple[str, ...],
        reason: AbortReason,
        context: TraceContext,
    ) -> None:
        """Ask the engine to end requests; see `EngineCoreClient.abort`."""
        body = AbortRequests(request_ids=request_ids, reason=reason)
        self._send(engine_id, self._desk.epoch_of(engine_id), body, context)

    def forget(self, request_id: str) -> None:
        """Wait no more for a request; see `EngineCoreClient.forget`."""
        self._desk.forget(request_id)

    def call(
        self, engine_id: str, call: Call[ResultT], *, timeout_s: float, context: TraceContext
    ) -> ResultT:
        """Run a utility call; see `SyncEngineCoreClient.call`."""
        pending = self._desk.open_call(engine_id)
        name = type(call).__name__
        body = UtilityCall(
            call_id=pending.call_id,
            deadline_ns=now_ns() + int(timeout_s * 1e9),
            call=call,  # pyright: ignore[reportArgumentType] - the closed union of all calls
        )
        try:
            self._send(engine_id, pending.epoch, body, context, call=name)
            reply = pending.reply.result(timeout_s)
        except FutureTimeoutError as error:
            raise UtilityTimeoutError(f"{name}: no reply within {timeout_s:g} s") from error
        finally:
            self._desk.close_call(pending)
        return result_of(reply, call)

    # ------------------------------------------------------------ sending

    def _send(
        self,
        engine_id: str,
        epoch: int,
        body: Body,
        parent: TraceContext,
        *,
        links: tuple[HopLink, ...] = (),
        call: str | None = None,
    ) -> None:
        """Send one message and report its half of the hop."""
        start_ns = now_ns()
        context = child_context(parent)
        identity = engine_identity(engine_id, epoch)
        name = type(body).__name__
        with self._sending:
            header = self._headers.make(context, epoch)
            frames = ENGINE_CODEC.encode(header, body)
            error = self._send_frames([identity, *frames])
        if error is None:
            self.counts.sent[name] += 1
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

    def _send_frames(self, frames: list[bytes]) -> str | None:
        """Send without blocking, trying again for a moment; return why the socket refused."""
        deadline_ns = now_ns() + int(REACHABLE_S * 1e9)
        while True:
            self._drop_probes()
            try:
                self._router.send_multipart(frames, flags=zmq.NOBLOCK)
            except zmq.Again:
                error = "its queue is full"
            except zmq.ZMQError as problem:
                if problem.errno != zmq.EHOSTUNREACH:
                    raise
                error = "no route"
            else:
                return None
            if now_ns() >= deadline_ns:
                return error
            time.sleep(RETRY_S)

    def _drop_probes(self) -> None:
        """Engines say their names through the ROUTER and nothing else."""
        while self._router.getsockopt(zmq.EVENTS) & zmq.POLLIN:  # pyright: ignore[reportOperatorIssue] - an integer option
            self._router.recv_multipart(zmq.NOBLOCK)


class OutputThread(threading.Thread):
    """Receives until told to stop. Both sockets are its own.

    Args:
        name: Of the client.
        sockets: The PULL, and the PAIR through which the end comes.
        desk: Gets the messages.
        on_hop: Gets the halves of the hops.
    """

    def __init__(
        self,
        name: str,
        sockets: tuple["zmq.Socket[bytes]", "zmq.Socket[bytes]"],
        desk: ReplyDesk,
        on_hop: OnHop,
    ) -> None:
        super().__init__(name=f"{name}-outputs", daemon=True)
        self._receiver = name
        self._pull, self._ending = sockets
        self._desk = desk
        self._on_hop = on_hop

    def run(self) -> None:
        """Receive until stopped. A failing socket fails all that waits."""
        try:
            self._serve()
        except Exception:
            logger.exception("the thread of the output socket died")
        finally:
            self._desk.fail_all("the client's output thread has ended")
            self._pull.close(0)
            self._ending.close(0)

    def _serve(self) -> None:
        poller = zmq.Poller()
        poller.register(self._pull, zmq.POLLIN)
        poller.register(self._ending, zmq.POLLIN)
        while True:
            ready = dict(poller.poll())
            if self._ending in ready:
                return
            self._receive()

    def _receive(self) -> None:
        frames = self._pull.recv_multipart(zmq.NOBLOCK)
        try:
            incoming = split(frames, ENGINE_CODEC)
        except UndecodableError as error:
            self._desk.counts.undecodable += 1
            logger.warning("dropped frames that are not a message: %s", error)
            return
        self._take(incoming)

    def _take(self, incoming: Incoming) -> None:
        dequeued_ns = now_ns()
        header = incoming.header
        known = self._desk.take(header.sender, header.engine_epoch, incoming.body)
        outcome: ReceivedOutcome = "fenced" if known is None else "ok" if known else "unknown"
        self._on_hop(received_half(incoming, self._receiver, dequeued_ns, outcome))


def result_of(reply: UtilityReply, call: Call[ResultT]) -> ResultT:
    """Return what a call has answered. Raises UtilityCallError."""
    if reply.error is not None:
        raise UtilityCallError(reply.error.code, reply.error.message)
    result: ResultT = msgspec.msgpack.decode(reply.result, type=call.Result)
    return result


def _end(thread: OutputThread, stop: "zmq.Socket[bytes]") -> None:
    stop.send(b"", zmq.NOBLOCK)
    thread.join(JOIN_S)
