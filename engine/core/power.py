"""Sleep and wake of the model: memory given back and taken again, both measured."""

import logging
from collections.abc import Callable
from typing import Literal

from engine.core.batch import DeviceFatalError, ModelRunner, Progress
from engine.wire.calls import SleepReport, WakeReport

logger = logging.getLogger(__name__)

SleepLevel = Literal[0, 1, 2]


class Power:
    """Whether the model is in memory. No request may be live when that changes.

    Args:
        runner: The model, loaded.
        weights_bytes: Size of its weights.
        canary: Generates a few greedy tokens; those of the first call are the right ones.
        forget: Called when the KV cache's content is gone.
        clock: Nanoseconds.
    """

    def __init__(
        self,
        runner: ModelRunner,
        weights_bytes: int,
        canary: Callable[[], tuple[int, ...]],
        forget: Callable[[], object],
        clock: Callable[[], int],
    ) -> None:
        self.level: SleepLevel = 0
        self._runner = runner
        self._weights_bytes = weights_bytes
        self._canary = canary
        self._forget = forget
        self._clock = clock
        self._right_tokens = canary()

    def sleep(self, level: Literal[1, 2]) -> SleepReport:
        """Release the model's memory; asleep already: only report."""
        started_ns = self._clock()
        before = self._runner.resident_bytes()
        if self.level:
            level = self.level
        else:
            self.level = level  # set first: half released is not awake either
            self._forget()
            self._runner.release(level)
        after = self._runner.resident_bytes()
        return SleepReport(
            level=level,
            resident_before_bytes=before,
            resident_after_bytes=after,
            freed_bytes=before - after,
            took_ns=self._clock() - started_ns,
            weights_bytes=self._weights_bytes,
        )

    def wake(self, progress: Progress) -> WakeReport:
        """Restore the model and compare the canary; awake already: only report.

        Raises:
            Exception: what the runner raised; the engine is asleep again.
        """
        started_ns = self._clock()
        canary_ok = True
        if self.level:
            canary_ok = self._restore(self.level, progress)
            self.level = 0
        return WakeReport(
            resident_bytes=self._runner.resident_bytes(),
            took_ns=self._clock() - started_ns,
            canary_ok=canary_ok,
        )

    def _restore(self, level: Literal[1, 2], progress: Progress) -> bool:
        try:
            self._runner.restore(progress)
            canary_ok = self._canary() == self._right_tokens
        except DeviceFatalError:
            raise
        except Exception:
            self._runner.release(level)  # not half awake
            raise
        if not canary_ok:
            logger.error("the model answers differently after the wake")
        return canary_ok
