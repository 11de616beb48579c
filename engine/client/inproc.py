"""The client whose engine runs in this process, in the thread that asks for outputs. No ZeroMQ.

The engine sees the same messages with the same headers as over a socket, and answers through the
same seam, `mail.Shell`.
"""

import logging
import weakref
from collections.abc import Callable
from typing import TypeVar

import msgspec

from engine.client.core_client import (
    EngineDeadError,
    OnMessage,
    SyncEngineCoreClient,
    UtilityCallError,
    UtilityTimeoutError,
    ignore_message,
)
from engine.client.inproc_shell import InprocShell
from engine.client.reply_desk import PendingCall, ReplyDesk
from engine.client.sync_mp import OnHop, ignore_hop, result_of
from engine.clock import now_ns
from engine.config import ClientEndpoint, EngineConfig
from engine.core.batch import ConfigError, ModelRunner
from engine.core.loop import EngineCore
from engine.core.mail import Received
from engine.core.ready import ready_message
from engine.wire.calls import Call, Sleep
from engine.wire.header import TraceContext, child_context
from engine.wire.messages import (
    AbortReason,
    AbortRequests,
    AddRequest,
    RequestOutput,
    ToEngine,
    UtilityCall,
)
from engine.wire.sockets import HeaderMaker, MessageCounts

logger = logging.getLogger(__name__)

ResultT = TypeVar("ResultT")

CLIENT = 0
LOOK_AGAIN_S = 0.05
"""Requests that wait for something in the background also have deadlines."""
NO_WAITING_SLEEP = (
    "an engine in this process sleeps only with mode='abort': with 'wait' nobody would run its "
    "requests to their end"
)


def torch_runner(config: EngineConfig) -> ModelRunner:
    """Import torch, which takes seconds, and return the runner."""
    from engine.core.runner import TorchRunner  # noqa: PLC0415

    return TorchRunner(config)


class InprocClient(SyncEngineCoreClient):
    """A client with its own engine, which is loaded by the constructor.

    The engine computes only inside `get_outputs` and `call`. An error that would end an engine's
    process makes it dead: everything raises `EngineDeadError` from then on.

    Args:
        config: Of the engine; its `clients` are not read.
        on_message: Gets `EngineProgress` while it loads, and `EngineReady`.
        on_hop: Gets the engine's halves of the hops.
        make_runner: Imports and makes the model's runner.

    Raises:
        ConfigError: the engine can never start with this configuration.
    """

    def __init__(
        self,
        config: EngineConfig,
        *,
        on_message: OnMessage = ignore_message,
        on_hop: OnHop = ignore_hop,
        make_runner: Callable[[EngineConfig], ModelRunner] = torch_runner,
    ) -> None:
        endpoint = ClientEndpoint(name="inproc", input="", output="")
        self._config = msgspec.structs.replace(config, clients=(endpoint,))
        self._desk = ReplyDesk(on_message)
        self._desk.expect(config.engine_id, config.epoch)
        self._headers = HeaderMaker(endpoint.name, 1)
        self._shell = InprocShell(self._config, self._desk, on_message, on_hop)
        runner = make_runner(self._config)
        try:
            facts = runner.load(self._shell.progress)
            self._core = EngineCore(self._config, runner, facts, self._shell)
        except BaseException:
            runner.release(2)
            raise
        self._finalizer = weakref.finalize(self, _shut_down, self._core, runner)
        on_message(config.engine_id, config.epoch, ready_message(self._config, facts, self._core))

    # ------------------------------------------------------------ life

    @property
    def counts(self) -> MessageCounts:
        """What passed between client and engine."""
        return self._desk.counts

    def close(self) -> None:
        """Give the engine's memory back; see `EngineCoreClient.close`."""
        self._desk.fail_all("the client was closed")
        self._finalizer()

    def expect(self, engine_id: str, epoch: int) -> None:
        """Accept only `epoch`; see `EngineCoreClient.expect`. There is never another engine."""
        self._desk.expect(engine_id, epoch)

    def fail_engine(self, engine_id: str, epoch: int, reason: str) -> None:
        """Fail all that is in flight; see `EngineCoreClient.fail_engine`."""
        self._desk.fail_engine(engine_id, epoch, reason)

    # ------------------------------------------------------------ requests

    def add_request(
        self, engine_id: str, request: AddRequest, context: TraceContext, *, external_id: str
    ) -> None:
        """Give a request to the engine; see `SyncEngineCoreClient.add_request`."""
        del external_id  # no send span links to it: nothing is sent
        self._desk.open_request(request.request_id, engine_id)
        self._give(engine_id, request, context)

    def get_outputs(self, timeout_s: float) -> list[RequestOutput]:
        """Run steps until something comes; see `SyncEngineCoreClient.get_outputs`.

        A step that has begun is not cut short by the time-out.
        """
        deadline_ns = now_ns() + int(timeout_s * 1e9)
        while self._desk.has_live and not self._desk.has_arrived:
            left_ns = deadline_ns - now_ns()
            if left_ns <= 0:
                break
            self._turn(left_ns / 1e9)
        return self._desk.get_outputs(0.0)

    def abort(
        self,
        engine_id: str,
        request_ids: tuple[str, ...],
        reason: AbortReason,
        context: TraceContext,
    ) -> None:
        """End requests; see `EngineCoreClient.abort`."""
        self._give(engine_id, AbortRequests(request_ids=request_ids, reason=reason), context)

    def forget(self, request_id: str) -> None:
        """Wait no more for a request; see `EngineCoreClient.forget`."""
        self._desk.forget(request_id)

    def call(
        self, engine_id: str, call: Call[ResultT], *, timeout_s: float, context: TraceContext
    ) -> ResultT:
        """Run a utility call; see `SyncEngineCoreClient.call`. `Sleep` may not wait.

        Requests in flight go on meanwhile if the call takes more than one turn.
        """
        _refuse_waiting(call)
        pending = self._desk.open_call(engine_id)
        deadline_ns = now_ns() + int(timeout_s * 1e9)
        body = UtilityCall(
            call_id=pending.call_id,
            deadline_ns=deadline_ns,
            call=call,  # pyright: ignore[reportArgumentType] - the closed union of all calls
        )
        try:
            self._give(engine_id, body, context)
            self._run_until(pending, deadline_ns)
        finally:
            self._desk.close_call(pending)
        if not pending.reply.done():
            raise UtilityTimeoutError(f"{type(call).__name__}: no reply within {timeout_s:g} s")
        return result_of(pending.reply.result(), call)

    # ------------------------------------------------------------ the loop

    def _run_until(self, pending: PendingCall, deadline_ns: int) -> None:
        while not pending.reply.done() and now_ns() < deadline_ns:
            self._turn((deadline_ns - now_ns()) / 1e9)

    def _turn(self, wait_s: float) -> None:
        """One turn of the engine's loop; waits for the background when nothing can be computed."""
        core = self._core
        if not core.has_work:
            self._shell.woken.wait(min(wait_s, LOOK_AGAIN_S))
        self._shell.woken.clear()
        try:
            if core.scheduler.requests:
                core.step()
            core.utilities.advance()
        except Exception as error:
            logger.exception("the engine in this process failed")
            self._die(error)
        except BaseException as interruption:  # a step that is half done cannot be gone on with
            self._die(interruption)
            raise

    def _give(self, engine_id: str, body: ToEngine, parent: TraceContext) -> None:
        """Hand a message over as if it had come through a socket."""
        epoch = self._desk.epoch_of(engine_id)
        header = self._headers.make(child_context(parent), epoch)
        self.counts.sent[type(body).__name__] += 1
        try:
            self._core.take(Received(CLIENT, header, body, now_ns()))
        except Exception as error:
            logger.exception("the engine in this process failed")
            raise self._die(error) from error

    def _die(self, error: BaseException) -> EngineDeadError:
        """What ends a process ends this engine."""
        is_fault = isinstance(error, Exception)
        reason = f"{type(error).__name__}: {error}" if is_fault else "it was interrupted in a step"
        self._desk.fail_engine(self._config.engine_id, self._config.epoch, reason)
        return EngineDeadError(self._config.engine_id, self._config.epoch, reason)


def _refuse_waiting(call: object) -> None:
    if isinstance(call, Sleep) and call.mode == "wait":
        raise UtilityCallError("invalid", NO_WAITING_SLEEP)


def _shut_down(core: EngineCore, runner: ModelRunner) -> None:
    core.shut_down()
    runner.release(2)


__all__ = ["ConfigError", "InprocClient"]
