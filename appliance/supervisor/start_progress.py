"""Decides which of the many steps of a start are worth a line on the terminal."""

from appliance.supervisor.admin.schemas import EngineRow

PAUSE_S = 1.0
"""Between two lines about the same phase of the same engine."""
STEPS = 4
"""A phase is shown at its begin and at most once per quarter."""


class StartProgress:
    """A line for each new state and phase; a phase that takes long gets one per quarter."""

    def __init__(self) -> None:
        self._shown: dict[str, tuple[str, str | None, int]] = {}
        self._shown_s: dict[str, float] = {}
        self._was_ready = False

    def line(self, row: EngineRow, now_s: float) -> str | None:
        """Return the line to show for this engine now, or None."""
        if row.phase == "spawn":
            return None  # over in a moment
        *before, quarter = self._shown.get(row.id, (None, None, 0))
        is_new = before != [row.state, row.phase]
        is_further = _quarter(row) > quarter and now_s - self._shown_s.get(row.id, 0) >= PAUSE_S
        if not (is_new or is_further):
            return None
        self._shown[row.id] = (row.state, row.phase, _quarter(row))
        self._shown_s[row.id] = now_s
        return describe(row)

    def first_ready(self, *, is_ready: bool) -> bool:
        """Whether this is the first time that everything is ready."""
        is_first = is_ready and not self._was_ready
        self._was_ready = self._was_ready or is_ready
        return is_first


def describe(row: EngineRow) -> str:
    """Say in one line where an engine is."""
    words = [f"{row.id}: {row.state}"]
    if row.phase and row.phase != row.state:
        words.append(row.phase)
    if _quarter(row):
        words.append(f"{100 * _quarter(row) // STEPS} %")
    if row.reason and row.state in ("backoff", "crash_loop", "failed"):
        words.append(f"({row.reason})")
    if row.state == "ready" and row.dtype_reason:
        words.append(f"in {row.dtype} ({row.dtype_reason})")
    if row.state == "ready" and row.kernel_backend == "reference" and row.device == "cpu":
        words.append(f"on the slower reference kernels ({row.kernel_reason or 'no reason given'})")
    return " ".join(words)


def _quarter(row: EngineRow) -> int:
    """Return how many quarters of the phase are done; a whole one is over, not worth a line."""
    progress = row.progress
    if progress is None or progress.done >= progress.total:
        return 0
    return STEPS * progress.done // progress.total
