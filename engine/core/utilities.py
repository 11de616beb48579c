"""Utility calls: a closed set, each dispatched to its handler, each answered exactly once.

Most answer at once. A `Sleep` that waits for running requests and a deep `Ping` stay pending, and
`advance`, called at every turn of the loop, sees to their deadlines.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from engine.config import EngineConfig
from engine.core.accounts import Accounts
from engine.core.adapter_calls import AdapterCalls
from engine.core.batch import AdapterStore, DeviceFatalError, ModelFacts
from engine.core.endings import ABORTED, ABORTED_ASLEEP, REJECTED_ASLEEP
from engine.core.flight_recorder import FlightRecorder
from engine.core.mail import Received, Shell, received_half, under
from engine.core.power import Power
from engine.core.profiler import ProfileCalls
from engine.core.request import Ending, EngineRequest, engine_request
from engine.core.scheduler import Scheduler
from engine.wire.calls import (
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
    StartProfile,
    StopProfile,
    UnloadAdapter,
    Wake,
)
from engine.wire.header import TraceContext
from engine.wire.messages import (
    AddRequest,
    RequestOutput,
    SamplingParams,
    UtilityCall,
    UtilityError,
    UtilityReply,
)

logger = logging.getLogger(__name__)

MAX_SLEEP_TIMEOUT_S = 86_400.0


class Core(Protocol):
    """What utility calls see of the engine and may do to it."""

    config: EngineConfig
    facts: ModelFacts
    shell: Shell
    clock: Callable[[], int]
    accounts: Accounts
    scheduler: Scheduler
    power: Power
    adapters: AdapterStore | None
    flight: FlightRecorder
    step_number: int

    @property
    def accepting(self) -> bool:
        """Whether new requests are taken."""
        ...

    @accepting.setter
    def accepting(self, accepting: bool) -> None: ...

    @property
    def phase(self) -> str:
        """See `Heartbeat.phase`."""
        ...

    def end_all(self, requests: list[EngineRequest], ending: Ending, parent: TraceContext) -> None:
        """End requests now and send their last outputs."""
        ...


class CallRefusedError(Exception):
    """A call cannot be done; `code` is one of `UtilityError`'s."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(slots=True, frozen=True)
class PendingCall:
    """A call that has not been answered."""

    received: Received
    message: UtilityCall
    dequeued_ns: int

    @property
    def context(self) -> TraceContext:
        """The call's place in its trace."""
        return self.received.header.context


class Utilities:
    """Runs the utility calls of one engine.

    Args:
        core: The engine; at its construction its parts need not exist yet.
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        self._sleep: PendingCall | None = None
        self._probes: dict[str, PendingCall] = {}
        self._probe_number = 0
        self._adapters = AdapterCalls(lambda: core.adapters, self._reply, self._refuse)
        self.profiles: ProfileCalls[PendingCall] = ProfileCalls(core, self._reply, self._refuse)

    @property
    def falling_asleep(self) -> bool:
        """Whether a `Sleep` waits for running requests."""
        return self._sleep is not None

    def start(self, received: Received, message: UtilityCall, dequeued_ns: int) -> None:
        """Begin a call; whatever goes wrong with it is its answer."""
        pending = PendingCall(received, message, dequeued_ns)
        try:
            self._refuse_if_late(pending)
            self._dispatch(pending)
        except CallRefusedError as error:
            self._refuse(pending, error.code, str(error))
        except DeviceFatalError:
            raise
        except Exception as error:
            name = type(message.call).__name__
            logger.exception("%s failed", name)
            self._refuse(pending, "internal_error", f"{name} failed: {error}")

    def _refuse_if_late(self, pending: PendingCall) -> None:
        if pending.message.deadline_ns <= self._core.clock():
            raise CallRefusedError("deadline_exceeded", "the call came after its deadline")

    def _dispatch(self, pending: PendingCall) -> None:
        match pending.message.call:
            case Sleep() as sleep:
                self._start_sleep(pending, sleep)
            case Wake():
                self._wake(pending)
            case Ping(deep=True):
                self._start_probe(pending)
            case Ping():
                self._reply_pong(pending, None)
            case DumpState():
                self._reply(pending, self._state())
            case SetRecording(recording=recording):
                self._core.shell.set_recording(recording=recording)
                self._reply(pending, RecordingSet(recording=recording))
            case ResetPrefixCache():
                dropped_blocks = self._core.scheduler.reset_prefix_cache()
                self._reply(pending, CacheReset(dropped_blocks=dropped_blocks))
            case call:
                self._start_elsewhere(pending, call)

    def _start_elsewhere(
        self,
        pending: PendingCall,
        call: LoadAdapter | UnloadAdapter | PinAdapter | ListAdapters | StartProfile | StopProfile,
    ) -> None:
        if isinstance(call, StartProfile | StopProfile):
            self.profiles.start(pending, call)
            return
        self._core.flight.event("adapter", type(call).__name__)
        self._adapters.start(pending, call)

    def advance(self) -> None:
        """Fall asleep once nothing runs; refuse what has passed its deadline."""
        now = self._core.clock()
        self._adapters.advance(now)
        self.profiles.advance(now)
        if self._sleep is not None:
            self._advance_sleep(self._sleep, now)
        for request_id, pending in list(self._probes.items()):
            if pending.message.deadline_ns <= now:
                self._end_probe(request_id, "deadline_exceeded", "no token by the deadline")

    def shut_down(self) -> None:
        """Refuse what is pending: the engine ends."""
        if self._sleep is not None:
            self._refuse(self._sleep, "shutting_down", "the engine is shutting down")
            self._sleep = None
        for pending in self._probes.values():
            self._refuse(pending, "shutting_down", "the engine is shutting down")
        self._probes.clear()
        self.profiles.shut_down()
        self._adapters.shut_down()

    # ------------------------------------------------------------ sleep and wake

    def _start_sleep(self, pending: PendingCall, call: Sleep) -> None:
        self._refuse_if_falling_asleep()
        if not 0.0 <= call.timeout_s <= MAX_SLEEP_TIMEOUT_S:
            raise CallRefusedError("invalid", f"timeout_s must be 0 to {MAX_SLEEP_TIMEOUT_S:g}")
        if not self._core.power.level:
            self._core.accepting = False
            self.profiles.end("the engine goes to sleep")
            for request_id in list(self._probes):
                self._end_probe(request_id, "busy", "the engine is falling asleep")
            if call.mode == "abort":
                self._end_live_requests(pending.context)
        if self._core.scheduler.requests:
            self._sleep = pending
        else:
            self._fall_asleep(pending)

    def _end_live_requests(self, parent: TraceContext) -> None:
        """End all: those that have computed nothing may be sent again, so they are rejected."""
        live = list(self._core.scheduler.requests.values())
        started = [request for request in live if request.scheduled_ns is not None]
        untouched = [request for request in live if request.scheduled_ns is None]
        self._core.end_all(started, ABORTED_ASLEEP, parent)
        self._core.end_all(untouched, REJECTED_ASLEEP, parent)

    def _advance_sleep(self, pending: PendingCall, now: int) -> None:
        if not self._core.scheduler.requests:
            self._sleep = None
            self._fall_asleep(pending)
        elif _sleep_deadline_ns(pending) <= now:
            self._sleep = None
            self._core.accepting = True
            running = len(self._core.scheduler.requests)
            self._refuse(pending, "deadline_exceeded", f"requests that still run: {running}")

    def _fall_asleep(self, pending: PendingCall) -> None:
        call = pending.message.call
        assert isinstance(call, Sleep), "only Sleep falls asleep"
        self._core.shell.beat("sleep")
        try:
            report = self._core.power.sleep(call.level)
        except DeviceFatalError:
            raise
        except Exception as error:
            logger.exception("Sleep failed")
            self._refuse(pending, "internal_error", f"Sleep failed: {error}")
            return
        logger.info("asleep at level %d: %d bytes freed", report.level, report.freed_bytes)
        self._core.flight.event("sleep", f"asleep at level {report.level}")
        self._reply(pending, report)

    def _wake(self, pending: PendingCall) -> None:
        self._refuse_if_falling_asleep()
        self._core.shell.beat("wake")
        report = self._core.power.wake(self._core.shell.progress)
        self._core.accepting = True
        logger.info("awake: %d ms, canary ok: %s", report.took_ns // 10**6, report.canary_ok)
        self._core.flight.event("wake", f"awake after {report.took_ns // 10**6} ms")
        self._reply(pending, report)

    def _refuse_if_falling_asleep(self) -> None:
        if self._sleep is not None:
            raise CallRefusedError("busy", "the engine is falling asleep")

    # ------------------------------------------------------------ probes

    def _start_probe(self, pending: PendingCall) -> None:
        """Queue a request of the engine's own; `probe_output` gets its token."""
        self._refuse_if_falling_asleep()
        core = self._core
        if not core.accepting:
            raise CallRefusedError("invalid", "the engine is asleep: it can make no token")
        self._probe_number += 1
        message = AddRequest(
            request_id=f"engine.ping-{self._probe_number}",
            prompt_token_ids=(core.facts.eos_token_ids or (0,))[:1],
            sampling=SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True),
            arrival_ns=pending.received.received_ns,
        )
        request = engine_request(message, None, pending.context, (), core.clock())
        self._probes[request.request_id] = pending
        core.scheduler.add(request)

    def probe_output(self, output: RequestOutput) -> None:
        """Answer the `Ping` whose request made its token or failed."""
        pending = self._probes.pop(output.request_id, None)
        if pending is None:
            return
        if output.new_token_ids:
            self._reply_pong(pending, output.new_token_ids[0])
        else:
            message = output.error.message if output.error else "the probe was ended"
            self._refuse(pending, "internal_error", message)

    def _end_probe(self, request_id: str, code: str, message: str) -> None:
        pending = self._probes.pop(request_id)
        request = self._core.scheduler.requests[request_id]
        self._core.end_all([request], ABORTED, pending.context)
        self._refuse(pending, code, message)

    def _reply_pong(self, pending: PendingCall, token_id: int | None) -> None:
        took_ns = self._core.clock() - pending.received.received_ns
        self._reply(pending, Pong(token_id=token_id, took_ns=took_ns))

    # ------------------------------------------------------------ state and replies

    def _state(self) -> EngineState:
        core = self._core
        now = core.clock()
        live: Mapping[str, EngineRequest] = core.scheduler.requests
        counts = core.scheduler.counts
        return EngineState(
            phase=core.phase,
            step=core.step_number,
            sleep_level=core.power.level,
            num_blocks=counts.num_blocks,
            free_blocks=counts.num_blocks - counts.used_blocks,
            cached_blocks=counts.cached_blocks,
            window_blocks=counts.window_blocks,
            free_window_blocks=counts.free_window_blocks,
            requests=tuple(request.state(now) for request in live.values()),
        )

    def _refuse(self, pending: PendingCall, code: str, message: str) -> None:
        error = UtilityError(code=code, message=message)
        self._send(pending, UtilityReply(call_id=pending.message.call_id, error=error))

    def _reply(self, pending: PendingCall, result: Any) -> None:
        raw = msgspec.Raw(msgspec.msgpack.encode(result))
        self._send(pending, UtilityReply(call_id=pending.message.call_id, result=raw))

    def _send(self, pending: PendingCall, reply: UtilityReply) -> None:
        now = self._core.clock()
        client = pending.received.client
        name = type(pending.message.call).__name__
        shell = self._core.shell
        shell.post(under(pending.context, client, reply, now, call=name))
        if shell.recording:
            receiver = self._core.config.engine_id
            shell.record(received_half(pending.received, receiver, pending.dequeued_ns, now))


def _sleep_deadline_ns(pending: PendingCall) -> int:
    call = pending.message.call
    assert isinstance(call, Sleep), "only Sleep waits"
    return min(
        pending.message.deadline_ns, pending.received.received_ns + int(call.timeout_s * 1e9)
    )
