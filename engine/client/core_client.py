"""The interface of all engine clients, and what they raise."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TypeVar

from engine.wire.calls import Call
from engine.wire.header import TraceContext
from engine.wire.messages import AbortReason, AddRequest, FromEngine, RequestOutput

ResultT = TypeVar("ResultT")

OnMessage = Callable[[str, int, FromEngine], None]
"""Called with (engine id, epoch, message) for everything but outputs and utility replies."""


class EngineClientError(Exception):
    """Base of what clients raise."""


class EngineDeadError(EngineClientError):
    """The engine died, or a newer epoch replaced it, while something was in flight."""

    def __init__(self, engine_id: str, epoch: int, reason: str) -> None:
        super().__init__(f"engine {engine_id} (epoch {epoch}) is gone: {reason}")
        self.engine_id = engine_id
        self.epoch = epoch
        self.reason = reason


class EngineUnreachableError(EngineClientError):
    """The socket has no route to the engine, or its queue is full; nothing was sent."""


class UtilityCallError(EngineClientError):
    """The engine answered a utility call with an error."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message


class UtilityTimeoutError(EngineClientError):
    """No reply to a utility call by its deadline."""


class EngineStartError(EngineClientError):
    """An engine did not become ready; the message says what it was at and where its log is."""


def ignore_message(_engine_id: str, _epoch: int, _message: FromEngine) -> None:
    """Take no interest in an engine's reports."""


class OutputCollector(ABC):
    """The outputs of one request, merged while nobody reads."""

    @abstractmethod
    async def get(self) -> RequestOutput:
        """Return what has come since the last call; waits for at least one output.

        Raises:
            EngineDeadError: the engine died; raised after the outputs that did arrive.
        """


class EngineCoreClient(ABC):
    """Sends requests and utility calls to engine cores and routes what comes back.

    This is what all clients share; how answers are taken is of two kinds, see the subclasses.
    """

    @abstractmethod
    def expect(self, engine_id: str, epoch: int) -> None:
        """Make `epoch` the only one accepted from this engine.

        What is in flight on an older one fails with `EngineDeadError`.
        """

    @abstractmethod
    def fail_engine(self, engine_id: str, epoch: int, reason: str) -> None:
        """Somebody who knows says that this epoch is dead: fail all that is in flight on it."""

    @abstractmethod
    def abort(
        self,
        engine_id: str,
        request_ids: tuple[str, ...],
        reason: AbortReason,
        context: TraceContext,
    ) -> None:
        """Ask the engine to end requests; their last outputs still arrive.

        Raises:
            EngineDeadError, EngineUnreachableError.
        """

    @abstractmethod
    def forget(self, request_id: str) -> None:
        """Wait no more for a request: later outputs are counted as unknown."""

    @abstractmethod
    def close(self) -> None:
        """Give everything back, engines of its own included; idempotent. What is in flight fails.

        A client that is collected, or whose process ends, does the same.
        """


class AsyncEngineCoreClient(EngineCoreClient):
    """A client for an event loop: each request has its collector."""

    @abstractmethod
    def add_request(
        self, engine_id: str, request: AddRequest, context: TraceContext, *, external_id: str
    ) -> OutputCollector:
        """Send a request; its collector is registered before anything is sent.

        `context` is the parent of the send span; `collector.send_span_id` names that span.

        Raises:
            EngineUnreachableError: nothing was sent and the collector is gone again.
            EngineDeadError: no epoch of this engine is expected.
        """

    @abstractmethod
    async def call(
        self, engine_id: str, call: Call[ResultT], *, timeout_s: float, context: TraceContext
    ) -> ResultT:
        """Run a utility call and return its typed result.

        Raises:
            EngineDeadError, EngineUnreachableError, UtilityCallError, UtilityTimeoutError.
        """


class SyncEngineCoreClient(EngineCoreClient):
    """A client for one thread: the outputs of all requests come through one method."""

    @abstractmethod
    def add_request(
        self, engine_id: str, request: AddRequest, context: TraceContext, *, external_id: str
    ) -> None:
        """Send a request.

        Raises:
            EngineUnreachableError: nothing was sent.
            EngineDeadError: no epoch of this engine is expected.
        """

    @abstractmethod
    def get_outputs(self, timeout_s: float) -> list[RequestOutput]:
        """Return what has come, waiting for at least one output; none by the time-out: empty.

        Returns at once when nothing is in flight.

        Raises:
            EngineDeadError: an engine died with requests; raised once for each death, after the
                outputs that did arrive.
        """

    @abstractmethod
    def call(
        self, engine_id: str, call: Call[ResultT], *, timeout_s: float, context: TraceContext
    ) -> ResultT:
        """Run a utility call and return its typed result.

        Raises:
            EngineDeadError, EngineUnreachableError, UtilityCallError, UtilityTimeoutError.
        """
