"""The utility calls about profiles. A start is answered when its file is written.

A profiler that fails fails its call, never the engine.
"""

import logging
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from engine.clock import now_ns
from engine.config import EngineConfig
from engine.core.batch import ModelFacts
from engine.core.flight_recorder import FlightRecorder
from engine.core.mail import Shell
from engine.core.profiler_session import ProfileRefusedError, ProfileSession, Writing
from engine.wire.calls import ProfileReport, StartProfile, StopProfile
from engine.wire.messages import UtilityCall

logger = logging.getLogger(__name__)

PHASE = "profile"


class Pending(Protocol):
    """A call that has not been answered."""

    @property
    def message(self) -> UtilityCall:
        """The call, its id and its deadline."""
        ...


PendingT = TypeVar("PendingT", bound=Pending)


class Core(Protocol):
    """What profiles need of the engine around them."""

    config: EngineConfig
    facts: ModelFacts
    shell: Shell
    flight: FlightRecorder


class ProfileCalls(Generic[PendingT]):
    """Takes one profile at a time; each call is answered exactly once.

    Args:
        core: The engine; at its construction its parts need not exist yet.
        reply: Answers a call with its result.
        refuse: Answers a call with a code and a text.
    """

    def __init__(
        self,
        core: Core,
        reply: Callable[[PendingT, Any], None],
        refuse: Callable[[PendingT, str, str], None],
    ) -> None:
        self.running: ProfileSession | None = None
        """Steps are executed inside its `step`."""
        self._core = core
        self._reply = reply
        self._refuse = refuse
        self._writing: Writing | None = None
        self._waiting: list[PendingT] = []

    @property
    def is_busy(self) -> bool:
        """Whether a profile is being taken or written."""
        return self.running is not None or self._writing is not None

    def start(self, pending: PendingT, call: StartProfile | StopProfile) -> None:
        """Begin a call."""
        match call:
            case StartProfile():
                self._begin(pending, call)
            case StopProfile():
                self._stop(pending)

    def advance(self, now_ns: int) -> None:
        """End a profile that has what it was asked for; answer when its file is there."""
        if self.running is not None and self.running.is_over(now_ns):
            self.end("it has what it was asked for")
        if self._writing is not None and self._writing.is_over:
            self._answer(self._writing)

    def end(self, why: str) -> None:
        """Stop recording now, and begin to write; without a profile: nothing."""
        session, self.running = self.running, None
        if session is None:
            return
        self._core.shell.beat(PHASE)  # the next takes microseconds for each event
        try:
            session.stop()
        except Exception as error:
            logger.exception("the profiler could not be stopped")
            self._fail(f"the profiler could not be stopped: {error}")
            return
        self._core.shell.beat(PHASE)
        self._core.flight.event("profile.stop", why)
        self._writing = Writing(session, self._core.shell.wake)

    def shut_down(self) -> None:
        """Refuse what is pending: the engine ends."""
        for pending in self._waiting:
            self._refuse(pending, "shutting_down", "the engine is shutting down")
        self._waiting.clear()
        self.running = self._writing = None

    def _begin(self, pending: PendingT, call: StartProfile) -> None:
        if self.is_busy:
            self._refuse(pending, "busy", "another profile is being taken")
            return
        try:
            is_cuda = self._core.facts.device.startswith("cuda")
            self.running = ProfileSession(call, self._core.config.engine_id, is_cuda=is_cuda)
        except ProfileRefusedError as error:
            self._refuse(pending, "invalid", str(error))
            return
        except Exception as error:
            logger.exception("the profiler could not be started")
            self._refuse(pending, "internal_error", f"the profiler could not be started: {error}")
            return
        self._waiting.append(pending)
        self._core.flight.event("profile.start", call.profile_id)

    def _stop(self, pending: PendingT) -> None:
        if not self.is_busy:
            self._reply(pending, _nothing(now_ns()))
            return
        self._waiting.append(pending)
        self.end("asked to")

    def _answer(self, writing: Writing) -> None:
        self._writing = None
        if writing.report is None:
            self._fail(writing.error or "the profile was not written")
            return
        for pending in self._waiting:
            self._reply(pending, writing.report)
        self._waiting.clear()

    def _fail(self, text: str) -> None:
        self._core.flight.event("profile.failed", text)
        for pending in self._waiting:
            self._refuse(pending, "internal_error", text)
        self._waiting.clear()


def _nothing(at_ns: int) -> ProfileReport:
    return ProfileReport(
        profile_id="",
        files=(),
        num_bytes=0,
        first_step=None,
        last_step=None,
        started_ns=at_ns,
        ended_ns=at_ns,
        already=True,
    )
