"""Decides which of the many steps of a start are worth a line on the terminal."""

from appliance.supervisor.admin.schemas import EngineRow

PAUSE_S = 1.0
"""Between two lines about the same phase of the same engine."""


class StartProgress:
    """A line for each new state and phase, and now and then one within a phase."""

    def __init__(self) -> None:
        self._shown: dict[str, tuple[str, str | None]] = {}
        self._shown_s: dict[str, float] = {}
        self._was_ready = False

    def line(self, row: EngineRow, now_s: float) -> str | None:
        """Return the line to show for this engine now, or None."""
        place = (row.state, row.phase)
        is_new = self._shown.get(row.id) != place
        if not is_new and now_s - self._shown_s[row.id] < PAUSE_S:
            return None
        text = describe(row)
        self._shown[row.id] = place
        self._shown_s[row.id] = now_s
        return text

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
    if row.progress is not None:
        words.append(f"{100 * row.progress.done // row.progress.total} %")
    if row.reason and row.state in ("backoff", "crash_loop", "failed"):
        words.append(f"({row.reason})")
    return " ".join(words)
