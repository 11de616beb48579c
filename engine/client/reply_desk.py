"""What a synchronous client waits for, kept apart from it: the receiving thread shares it.

Nothing here refers to the client, so a client that nobody holds any more is collected, and with it
go its thread and its engines.
"""

import logging
import queue
import threading
import uuid
from concurrent.futures import Future

from engine.client.core_client import EngineDeadError, OnMessage
from engine.wire.messages import (
    Body,
    EngineDead,
    EngineOutputs,
    RequestOutput,
    UtilityReply,
)
from engine.wire.sockets import MessageCounts

logger = logging.getLogger(__name__)


class PendingCall:
    """A utility call that waits for its reply."""

    def __init__(self, engine_id: str, epoch: int) -> None:
        self.call_id = uuid.uuid4().hex
        self.engine_id = engine_id
        self.epoch = epoch
        self.reply: Future[UtilityReply] = Future()


class ReplyDesk:
    """Routes what engines say to those who wait for it; any thread may call it.

    Args:
        on_message: Gets everything but outputs and utility replies.
    """

    def __init__(self, on_message: OnMessage) -> None:
        self.counts = MessageCounts()
        self._on_message = on_message
        self._lock = threading.Lock()
        self._epochs: dict[str, int] = {}
        self._gone: dict[str, str] = {}
        """Why an engine is not expected any more."""
        self._live: dict[str, tuple[str, int]] = {}
        """Engine and epoch of each request in flight."""
        self._calls: dict[str, PendingCall] = {}
        self._arrived: queue.SimpleQueue[RequestOutput | EngineDeadError] = queue.SimpleQueue()
        self._death: EngineDeadError | None = None
        """To be told at the next look."""

    # ------------------------------------------------------------ epochs

    def expect(self, engine_id: str, epoch: int) -> None:
        """Accept only `epoch` from this engine; what is in flight on an older one fails."""
        current = self._epochs.get(engine_id)
        if current == epoch:
            return
        if current is not None:
            self.fail_engine(engine_id, current, f"replaced by epoch {epoch}")
        with self._lock:
            self._epochs[engine_id] = epoch
            self._gone.pop(engine_id, None)

    def epoch_of(self, engine_id: str) -> int:
        """Return the epoch that is expected.

        Raises:
            EngineDeadError: none is.
        """
        epoch = self._epochs.get(engine_id)
        if epoch is None:
            reason = self._gone.get(engine_id, "no epoch of it is expected")
            raise EngineDeadError(engine_id, 0, reason)
        return epoch

    def fail_engine(self, engine_id: str, epoch: int, reason: str) -> None:
        """Fail all that is in flight on a dead epoch."""
        error = EngineDeadError(engine_id, epoch, reason)
        with self._lock:
            if self._epochs.get(engine_id) == epoch:
                del self._epochs[engine_id]
                self._gone[engine_id] = reason
            lost = [id_ for id_, who in self._live.items() if _is_of(who, engine_id, epoch)]
            for request_id in lost:
                del self._live[request_id]
            calls = [
                call
                for call in self._calls.values()
                if _is_of((call.engine_id, call.epoch), engine_id, epoch)
            ]
        if lost:
            self._arrived.put(error)
        for call in calls:
            if not call.reply.done():
                call.reply.set_exception(error)

    def fail_all(self, reason: str) -> None:
        """Fail everything: nobody will answer any more."""
        for engine_id, epoch in list(self._epochs.items()):
            self.fail_engine(engine_id, epoch, reason)

    # ------------------------------------------------------------ what waits

    def open_request(self, request_id: str, engine_id: str) -> int:
        """Wait for a request's outputs; return the engine's epoch. Raises EngineDeadError."""
        epoch = self.epoch_of(engine_id)
        with self._lock:
            self._live[request_id] = (engine_id, epoch)
        return epoch

    def forget(self, request_id: str) -> None:
        """Wait no more for a request."""
        with self._lock:
            self._live.pop(request_id, None)

    def open_call(self, engine_id: str) -> PendingCall:
        """Wait for a reply. Raises EngineDeadError."""
        call = PendingCall(engine_id, self.epoch_of(engine_id))
        with self._lock:
            self._calls[call.call_id] = call
        return call

    def close_call(self, call: PendingCall) -> None:
        """Wait no more for a reply."""
        with self._lock:
            self._calls.pop(call.call_id, None)

    @property
    def has_live(self) -> bool:
        """Whether a request is in flight."""
        return bool(self._live)

    @property
    def has_arrived(self) -> bool:
        """Whether `get_outputs` would return or raise at once."""
        return self._death is not None or not self._arrived.empty()

    def get_outputs(self, timeout_s: float) -> list[RequestOutput]:
        """Return what has come; see `SyncEngineCoreClient.get_outputs`."""
        self._raise_death()
        outputs: list[RequestOutput] = []
        wait_s = timeout_s if self.has_live else 0.0
        try:
            while True:
                item = (
                    self._arrived.get(timeout=wait_s) if wait_s > 0 else self._arrived.get_nowait()
                )
                wait_s = 0.0
                if isinstance(item, EngineDeadError):
                    self._death = item
                    break
                outputs.append(item)
        except queue.Empty:
            return outputs
        if not outputs:
            self._raise_death()
        return outputs

    def _raise_death(self) -> None:
        death, self._death = self._death, None
        if death is not None:
            raise death

    # ------------------------------------------------------------ what comes

    def take(self, engine_id: str, epoch: int, body: Body) -> bool | None:
        """Route one message; None: of another epoch, false: nobody waits for it."""
        self.counts.received[type(body).__name__] += 1
        if self._epochs.get(engine_id) != epoch:
            self.counts.fenced += 1
            return None
        try:
            return self._route(engine_id, epoch, body)
        except Exception:
            logger.exception("handling %s of %s failed", type(body).__name__, engine_id)
            return True

    def _route(self, engine_id: str, epoch: int, body: Body) -> bool:
        match body:
            case EngineOutputs():
                return self._deliver(body)
            case UtilityReply():
                return self._answer(body)
            case EngineDead():
                self._on_message(engine_id, epoch, body)
                self.fail_engine(engine_id, epoch, f"{body.reason}: {body.detail}")
            case _:
                self._on_message(engine_id, epoch, body)  # pyright: ignore[reportArgumentType] - the codec decodes only FromEngine here
        return True

    def _deliver(self, outputs: EngineOutputs) -> bool:
        delivered = False
        for output in outputs.outputs:
            if output.request_id not in self._live:
                self.counts.unknown += 1
                continue
            delivered = True
            self._arrived.put(output)
            if output.finish_reason is not None:
                self.forget(output.request_id)
        return delivered

    def _answer(self, reply: UtilityReply) -> bool:
        call = self._calls.get(reply.call_id)
        if call is None or call.reply.done():
            self.counts.unknown += 1
            return False
        call.reply.set_result(reply)
        return True


def _is_of(who: tuple[str, int], engine_id: str, epoch: int) -> bool:
    return who[0] == engine_id and who[1] <= epoch
