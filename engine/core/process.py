"""An engine core as a process: sockets, threads and signals around the loop.

Everything but the runner is imported and running before torch is: the engine says hello first.
"""

import gc
import logging
import os
import queue
import signal
import sys
import traceback
from collections.abc import Callable

import zmq

from engine.clock import now_ns
from engine.config import EngineConfig
from engine.core.batch import ConfigError, DeviceFatalError, ModelRunner
from engine.core.flight_recorder import open_flight_recorder
from engine.core.input_thread import InputThread
from engine.core.loop import EngineCore
from engine.core.mail import Mail, Outgoing, StopRequested, WakeUp
from engine.core.output_thread import OutputThread
from engine.core.ready import ready_message
from engine.core.records import RecordBuffer
from engine.core.reports import Reporter, SocketAccounts
from engine.wire.header import new_context
from engine.wire.hops import HopRecord, StepRecord
from engine.wire.messages import EngineDead, EngineHello, FromEngine

logger = logging.getLogger(__name__)

MakeRunner = Callable[[EngineConfig], ModelRunner]

EXIT_OK = 0
EXIT_INTERNAL_ERROR = 1
EXIT_DEVICE_ERROR = 70
"""EX_SOFTWARE of sysexits.h."""
EXIT_CONFIG_ERROR = 78
"""EX_CONFIG of sysexits.h."""

FLUSH_S = 0.3
"""For what waits in the outboxes at the end: time to connect again; the sockets linger after that.
At an ordered shutdown the gateways are gone already, so this is what an engine's end takes."""
JOIN_S = 2.0
MAX_MAIL = 1024
"""Messages taken between two steps."""
SWITCH_S = 0.0002
"""After so long a thread gives the interpreter away that another one waits for. The loop needs it
back when the model has computed: by default it would wait 5 ms for a thread that is busy, as long
as a whole step, and shorter turns cost busy threads nothing that could be measured."""


class StopRequestedError(Exception):
    """A signal asked the engine to end while it was loading."""


class IoThreadDiedError(Exception):
    """Without its input or output thread an engine is deaf or mute."""


def torch_runner(config: EngineConfig) -> ModelRunner:
    """Import torch, which takes seconds, and return the runner."""
    from engine.core.runner import TorchRunner  # noqa: PLC0415

    return TorchRunner(config)


class EngineCoreProc:
    """The process of one engine core; its loop runs in the thread that calls `run`.

    Args:
        config: From the launcher.
        make_runner: Imports and makes the model's runner.
    """

    def __init__(self, config: EngineConfig, make_runner: MakeRunner = torch_runner) -> None:
        self._config = config
        self._make_runner = make_runner
        # unbounded: gateways bound what they have in flight, and aborts may not wait behind it
        self._mail: queue.SimpleQueue[Mail] = queue.SimpleQueue()
        self._stopping = False
        self._records = RecordBuffer()
        self._records.enabled = config.recording
        self._flight = open_flight_recorder(config)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._input = InputThread(
            self._context, config, self._records, self._mail.put, self._flight.event
        )
        self._output = OutputThread(self._context, config, self._records, self._mail.put)
        sockets = SocketAccounts(
            self._input.counts,
            self._output.counts,
            clients_cut_off=lambda: self._output.clients_cut_off,
            inbox=self._mail.qsize,
            outbox=lambda: self._output.waiting,
        )
        self._reporter = Reporter(config, self._output.post, self._records, sockets)

    # ------------------------------------------------------------ life

    def run(self) -> int:
        """Serve until a signal or an error ends it; return the exit code."""
        sys.setswitchinterval(SWITCH_S)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group
        signal.signal(signal.SIGTERM, self._on_sigterm)
        self._input.start()
        self._output.start()
        started_ns = now_ns()
        self._post_all(
            EngineHello(
                engine_id=self._config.engine_id,
                epoch=self._config.epoch,
                pid=os.getpid(),
                started_ns=started_ns,
            )
        )
        last_words, exit_code = self._last_words()
        logger.info("engine ends: %s %s", last_words.reason, last_words.detail)
        self._close(last_words)
        return exit_code

    def _last_words(self) -> tuple[EngineDead, int]:
        """Load and serve; return why that ended."""
        try:
            core = self._load()
            self._reporter.core = core
            self._serve(core)
        except StopRequestedError:
            return EngineDead(reason="shutdown", detail="while loading"), EXIT_OK
        except Exception as error:
            if not isinstance(error, ConfigError):
                logger.exception("the engine failed")
            return _obituary(error)
        return EngineDead(reason="shutdown", detail="asked to by a signal"), EXIT_OK

    def _close(self, last_words: EngineDead) -> None:
        self._flight.event("end", f"{last_words.reason}: {last_words.detail}")
        if self._reporter.core is not None:
            self._reporter.core.shut_down()
        while self._reporter.send_records():
            continue
        self._post_all(last_words)
        self._input.stop()
        self._output.stop(FLUSH_S)
        self._input.join(JOIN_S)
        self._output.join(JOIN_S)
        if not (self._output.finished or self._output.is_alive()):
            self._output.wind_down(FLUSH_S)
        self._context.term()
        if last_words.reason == "shutdown":
            self._flight.close()

    def _on_sigterm(self, _signal: int, _frame: object) -> None:
        self._stopping = True
        self._mail.put(StopRequested())

    # ------------------------------------------------------------ loading

    def _load(self) -> EngineCore:
        _check(self._config)
        self.progress("import", 0, 1)
        runner = self._make_runner(self._config)
        self.progress("import", 1, 1)
        facts = runner.load(self.progress)
        core = EngineCore(self._config, runner, facts, self, flight=self._flight)
        gc.collect()
        gc.freeze()  # what is there now stays: later collections need not look at it
        phases = self._reporter.phases.finish(now_ns())
        self._post_all(ready_message(self._config, facts, core, phases))
        logger.info("engine ready: %s, %d blocks", facts.architecture, facts.num_blocks)
        return core

    # ------------------------------------------------------------ the loop

    def _serve(self, core: EngineCore) -> None:
        while not self._stopping:
            self._take_mail(core)
            if core.scheduler.requests:  # a step also ends those whose deadline has passed
                core.step()
            core.utilities.advance()
            self._reporter.tick(core)
            self._check_threads()

    def _take_mail(self, core: EngineCore) -> None:
        """Take what has come; with nothing else to do, wait for it until the next tick."""
        timeout_s = 0.0 if core.has_work else self._reporter.due_in_s()
        for _ in range(MAX_MAIL):
            try:
                mail = self._mail.get(timeout=timeout_s) if timeout_s else self._mail.get_nowait()
            except queue.Empty:
                return
            timeout_s = 0.0
            if not isinstance(mail, StopRequested | WakeUp):
                core.take(mail)

    def _check_threads(self) -> None:
        for thread in (self._input, self._output):
            if not thread.is_alive():
                raise IoThreadDiedError(f"the {thread.name} thread died")

    # ------------------------------------------------------------ the loop's shell

    def post(self, outgoing: Outgoing) -> None:
        """Send a message."""
        self._output.send(outgoing)

    def record(self, record: HopRecord | StepRecord) -> None:
        """Keep a record for the supervisor."""
        self._records.add(record)

    @property
    def recording(self) -> bool:
        """Whether hops and steps are recorded."""
        return self._records.enabled

    def set_recording(self, *, recording: bool) -> None:
        """Record from now on, or stop doing so."""
        self._records.enabled = recording

    def beat(self, phase: str) -> None:
        """Send a heartbeat now."""
        self._reporter.beat(phase)

    def wake(self) -> None:
        """Make the loop look again; any thread may call it."""
        self._mail.put(WakeUp())

    def progress(self, phase: str, done: int, total: int) -> None:
        """Report how far a start or a wake is.

        Raises:
            StopRequestedError: a signal came.
        """
        if self._stopping:
            raise StopRequestedError
        self._check_threads()
        self._flight.event("phase", phase)
        self._reporter.progress(phase, done, total)

    def _post_all(self, body: FromEngine) -> None:
        now = now_ns()
        for client in range(len(self._config.clients)):
            self._output.post(Outgoing(client, body, new_context(), None, now))


def _check(config: EngineConfig) -> None:
    """Refuse a configuration that no engine can run with.

    Raises:
        ConfigError: it names the field.
    """
    for name, value in (
        ("block_size", config.block_size),
        ("max_num_seqs", config.max_num_seqs),
        ("max_num_batched_tokens", config.max_num_batched_tokens),
        ("outbox_limit", config.outbox_limit),
    ):
        if value < 1:
            raise ConfigError(f"{name} must be at least 1, got {value}")
    if config.max_num_batched_tokens < config.max_num_seqs:
        raise ConfigError(
            f"max_num_batched_tokens is {config.max_num_batched_tokens}: it must be at least "
            f"max_num_seqs ({config.max_num_seqs}), for each running request takes one in a step"
        )
    if not config.heartbeat_s > 0:
        raise ConfigError(f"heartbeat_s must be above 0, got {config.heartbeat_s}")


def _obituary(error: Exception) -> tuple[EngineDead, int]:
    match error:
        case ConfigError():
            return EngineDead(reason="config_error", detail=str(error)), EXIT_CONFIG_ERROR
        case DeviceFatalError():
            return EngineDead(reason="device_error", detail=str(error)), EXIT_DEVICE_ERROR
        case IoThreadDiedError():
            return EngineDead(reason="io_thread_died", detail=str(error)), EXIT_INTERNAL_ERROR
        case _:
            detail = traceback.format_exception_only(error)[-1].strip()
            return EngineDead(reason="internal_error", detail=detail), EXIT_INTERNAL_ERROR
