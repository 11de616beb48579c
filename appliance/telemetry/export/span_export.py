"""A bounded queue of spans and the thread that brings them to a collector.

A collector that is slow, refuses or is away costs spans, which are counted, and nothing else: the
hub only appends. Every span that was added is exported, failed, dropped or still queued.
"""

import logging
import random
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from appliance.config.otlp import OtlpOptions
from appliance.supervisor.admin.insight_schemas import ExportStatus
from appliance.telemetry.export.sender import Refused, Sender, Taken
from appliance.telemetry.export.span_encoder import SpanEncoder
from appliance.telemetry.span_data import SpanData
from engine.clock import now_ns

logger = logging.getLogger(__name__)

PIECE = 64
"""Spans encoded in one go: what holds the interpreter for about half a millisecond."""
MAX_BATCH_BYTES = 1 << 20
YIELD_S = 0.0002
"""Between two pieces, so that a loop that waits for the interpreter gets it."""
PAUSE_S = 0.005
LEAVE_S = 0.2
"""What the thread gets to notice that it shall end."""
NS_PER_S = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportPace:
    """How much is sent, how often, and for how long a batch is worth sending again."""

    max_queued: int = 20_000
    """Beyond, new spans are dropped and counted."""
    max_batch: int = 512
    gather_s: float = 0.5
    """What comes within that time leaves together."""
    hold_s: float = 30.0
    """A batch that is refused for longer has failed."""
    first_delay_s: float = 0.5
    max_delay_s: float = 8.0

    def delay_s(self, failures: int, after_s: float | None) -> float:
        """Return the wait before the next try: doubling, or what the collector asks for."""
        if after_s is not None:
            return min(max(after_s, self.first_delay_s), self.hold_s)
        doubled = self.first_delay_s * 2.0 ** min(failures - 1, 10)
        jitter = random.uniform(0.8, 1.2)  # noqa: S311 - spreads tries, guards nothing
        return min(doubled, self.max_delay_s) * jitter


class SpanExport:
    """Takes spans and sends them; see the module.

    Args:
        options: Where to.
        sender: By which protocol.
        encoder: Used by the thread of this export alone.
        pace: Bounds and times.
    """

    def __init__(
        self,
        options: OtlpOptions,
        sender: Sender,
        encoder: SpanEncoder,
        pace: ExportPace | None = None,
    ) -> None:
        self.endpoint = options.shown
        self.exported = 0
        self.failed = 0
        self.dropped = 0
        self.is_enabled = True
        self._options = options
        self._sender = sender
        self._encoder = encoder
        self._pace = pace or ExportPace()
        self._queue: deque[SpanData] = deque()
        self._in_flight = 0
        self._asked_ns: int | None = None
        self._reason: str | None = None
        self._failures = 0
        self._is_failing = False
        self._has_logged_fault = False
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="span-export", daemon=True)
        self._thread.start()

    # ------------------------------------------------------------ any thread

    @property
    def queued(self) -> int:
        """Spans that wait or are on their way."""
        return len(self._queue) + self._in_flight

    @property
    def failing(self) -> bool:
        """Whether the collector refused the last batch, or keeps one without an answer."""
        return self.is_enabled and (self._is_failing or self._is_stuck())

    @property
    def last_error(self) -> str | None:
        """Why the last batch was refused, or spans of it; never a secret."""
        return "it keeps a request without an answer" if self._is_stuck() else self._reason

    def add(self, spans: Sequence[SpanData]) -> None:
        """Queue spans; never blocks. While the export is off they are not wanted."""
        if not self.is_enabled:
            return
        room = self._pace.max_queued - len(self._queue)
        if room >= len(spans):
            self._queue.extend(spans)
        else:
            self._queue.extend(spans[: max(0, room)])
            self.dropped += len(spans) - max(0, room)

    def set_enabled(self, is_enabled: bool) -> None:
        """Switch the export on or off. What is queued still leaves, unless the collector fails."""
        self.is_enabled = is_enabled

    def status(self) -> ExportStatus:
        """Say how it goes."""
        state = "failing" if self.failing else "works" if self.exported else "idle"
        return ExportStatus(
            endpoint=self.endpoint,
            protocol=self._options.protocol,
            state=state if self.is_enabled else "idle",
            last_error=self.last_error,
            exported=self.exported,
            failed=self.failed,
            dropped=self.dropped,
            queued=self.queued,
        )

    def close(self, timeout_s: float) -> None:
        """Export what is queued, for at most that long. Blocks: call it in a thread.

        A collector that failed last is not asked again, and one that holds a request is left alone:
        the thread is a daemon, so neither keeps the process from ending.
        """
        self._stopping.set()
        if not self.failing:
            self._thread.join(timeout_s)
        self._sender.close()
        self._thread.join(LEAVE_S)
        lost = self.failed + self.dropped + self.queued
        if lost:
            logger.warning("%d spans did not reach %s", lost, self.endpoint)

    def _is_stuck(self) -> bool:
        """Whether a collector feeds bytes so slowly that no time-out strikes."""
        asked_ns = self._asked_ns
        return asked_ns is not None and now_ns() - asked_ns > 2e9 * self._options.timeout_s

    # ------------------------------------------------------------ the thread

    def _run(self) -> None:
        while not self._stopping.wait(self._pace.gather_s):
            self._empty_queue()
        self._empty_queue()

    def _empty_queue(self) -> None:
        while self._queue:
            if self._is_failing and (self._stopping.is_set() or not self.is_enabled):
                self._give_queue_up()
                return
            body = self._next_batch()
            if body:
                self._deliver(body)
            time.sleep(PAUSE_S)

    def _give_queue_up(self) -> None:
        while self._queue:
            self._queue.popleft()
            self.failed += 1

    def _next_batch(self) -> bytes:
        """Encode the next spans; they are in flight from now on."""
        pieces: list[bytes] = []
        size = 0
        while self._queue and self._in_flight < self._pace.max_batch and size < MAX_BATCH_BYTES:
            room = min(PIECE, self._pace.max_batch - self._in_flight, len(self._queue))
            spans = [self._queue.popleft() for _ in range(room)]
            self._in_flight += room
            piece = self._encode(spans)
            size += len(piece)
            pieces.append(piece)
            time.sleep(YIELD_S)
        return b"".join(pieces)

    def _encode(self, spans: list[SpanData]) -> bytes:
        try:
            return self._encoder.encode(spans)
        except Exception:  # a span that cannot be encoded must not end the thread
            if not self._has_logged_fault:
                self._has_logged_fault = True
                logger.exception("a span could not be encoded; further ones are only counted")
        if len(spans) == 1:
            self._in_flight -= 1
            self.failed += 1
            return b""
        return b"".join(self._encode([span]) for span in spans)

    def _deliver(self, body: bytes) -> None:
        """Send a batch until it is taken, refused for good, or not worth it any more."""
        give_up_ns = now_ns() + int(self._pace.hold_s * NS_PER_S)
        while True:
            outcome = self._ask(body)
            if isinstance(outcome, Taken):
                self._settle(rejected=min(outcome.rejected, self._in_flight))
                return
            delay_s = self._pace.delay_s(self._failures, outcome.after_s)
            is_over = outcome.is_final or now_ns() + delay_s * NS_PER_S > give_up_ns
            if is_over or not self.is_enabled or self._stopping.is_set():
                self._settle(rejected=self._in_flight)
                self._stopping.wait(delay_s)
                return
            if self._stopping.wait(delay_s):
                self._settle(rejected=self._in_flight)
                return

    def _ask(self, body: bytes) -> Taken | Refused:
        self._asked_ns = now_ns()
        try:
            outcome = self._sender.send(body)
        except Exception:
            logger.exception("a batch could not be sent")
            outcome = Refused("the export itself failed", is_final=True)
        self._asked_ns = None
        self._reason = outcome.reason
        if isinstance(outcome, Taken):
            self._failures, self._is_failing = 0, False
        else:
            self._failures += 1
            # a collector that says when it wants the batch is not broken, unless it says so again
            self._is_failing = self._is_failing or outcome.after_s is None or self._failures > 1
        return outcome

    def _settle(self, rejected: int) -> None:
        """Count a batch that is done with."""
        self.exported += self._in_flight - rejected
        self.failed += rejected
        self._in_flight = 0
