"""What an engine tells of itself: progress, heartbeats, stats and records, each at its own pace."""

from collections.abc import Callable

from engine.clock import now_ns
from engine.config import EngineConfig
from engine.core.engine_stats import SocketAccounts, engine_stats
from engine.core.loop import EngineCore
from engine.core.mail import Outgoing
from engine.core.records import RecordBuffer
from engine.process_figures import FigureReader
from engine.wire.header import new_context
from engine.wire.messages import EngineProgress, FromEngine, Heartbeat, StartPhase

SUPERVISOR = 0
"""Index of the client that gets the reports."""
PROGRESS_NS = 100_000_000
STATS_BUSY_NS = 200_000_000
STATS_IDLE_NS = 1_000_000_000
RECORDS_NS = 200_000_000
BYTE_PHASES = frozenset({"weights", "kv_cache"})


class Pace:
    """Says when something is due: at most every so many nanoseconds."""

    def __init__(self) -> None:
        self.last_ns: int | None = None

    def is_due(self, now: int, interval_ns: int) -> bool:
        """Whether the interval has passed; if so it begins anew."""
        if self.last_ns is not None and now - self.last_ns < interval_ns:
            return False
        self.last_ns = now
        return True

    def due_in_ns(self, now: int, interval_ns: int) -> int:
        """Return how long it is until the interval has passed."""
        return 0 if self.last_ns is None else max(0, self.last_ns + interval_ns - now)


class Phases:
    """The phases of a start, one after the other."""

    def __init__(self) -> None:
        self._finished: list[StartPhase] = []
        self._name: str | None = None
        self._start_ns = 0

    def enter(self, name: str | None, now: int) -> bool:
        """Begin a phase (None: only end the last one); false when it is the current one."""
        if name == self._name:
            return False
        if self._name is not None:
            self._finished.append(StartPhase(name=self._name, start_ns=self._start_ns, end_ns=now))
        self._name, self._start_ns = name, now
        return True

    def finish(self, now: int) -> tuple[StartPhase, ...]:
        """End the last phase and return all of them."""
        self.enter(None, now)
        return tuple(self._finished)


class Reporter:
    """Sends the reports of one engine to its supervisor.

    Args:
        config: Heartbeat interval.
        post: Sends a message.
        records: What `EngineRecords` carry.
        sockets: Counts of the IO threads.
    """

    def __init__(
        self,
        config: EngineConfig,
        post: Callable[[Outgoing], None],
        records: RecordBuffer,
        sockets: SocketAccounts,
    ) -> None:
        self.phases = Phases()
        self.core: EngineCore | None = None
        """None while the engine starts."""
        self._heartbeat_ns = int(config.heartbeat_s * 1e9)
        self._post = post
        self._records = records
        self._sockets = sockets
        self._heartbeats, self._progress = Pace(), Pace()
        self._stats, self._batches = Pace(), Pace()
        self._sleep_level = 0
        self._figures = FigureReader()

    # ------------------------------------------------------------ while loading

    def progress(self, phase: str, done: int, total: int) -> None:
        """Report how far a start or a wake is: each new phase, its end, and now and then."""
        now = now_ns()
        entered = self.phases.enter(phase, now)
        if not (self._progress.is_due(now, PROGRESS_NS) or entered or done >= total):
            return
        unit = "bytes" if phase in BYTE_PHASES else "steps"
        self._send(EngineProgress(phase=phase, done=done, total=total, unit=unit))
        if self._heartbeats.is_due(now, self._heartbeat_ns):
            self.beat("wake" if self.core else phase)

    # ------------------------------------------------------------ in the loop

    def tick(self, core: EngineCore) -> None:
        """Send what is due."""
        now = now_ns()
        is_awake = False
        if self._heartbeats.is_due(now, self._heartbeat_ns):
            self.beat(core.phase)
        stats_ns = STATS_BUSY_NS if core.has_work else STATS_IDLE_NS
        if self._stats.is_due(now, stats_ns) or core.power.level != self._sleep_level:
            self._sleep_level = core.power.level
            self._send(engine_stats(core, self._sockets, self._records, self._figures))
            is_awake = True  # the thread that sends, and the supervisor: records cost little more
        if len(self._records) and (is_awake or self._batches.is_due(now, RECORDS_NS)):
            self._batches.last_ns = now
            self.send_records()

    def due_in_s(self) -> float:
        """Return how long an idle loop may wait before its next tick."""
        now = now_ns()
        due_ns = min(
            self._heartbeats.due_in_ns(now, self._heartbeat_ns),
            self._stats.due_in_ns(now, STATS_IDLE_NS),
        )
        if len(self._records):
            due_ns = min(due_ns, self._batches.due_in_ns(now, RECORDS_NS))
        return due_ns / 1e9

    def beat(self, phase: str) -> None:
        """Send a heartbeat now."""
        core = self.core
        self._heartbeats.last_ns = now_ns()
        self._send(
            Heartbeat(
                step=core.step_number if core else 0,
                phase=phase,
                running=core.scheduler.num_running if core else 0,
                waiting=core.scheduler.num_waiting if core else 0,
                last_token_ns=core.accounts.last_token_ns if core else None,
                is_blocked=core is not None and not core.has_work,
            )
        )

    def send_records(self) -> bool:
        """Send one batch of records; false when there are none."""
        batch = self._records.take()
        if batch is None:
            return False
        self._send(batch)
        return True

    def _send(self, body: FromEngine) -> None:
        self._post(Outgoing(SUPERVISOR, body, new_context(), None, now_ns()))
