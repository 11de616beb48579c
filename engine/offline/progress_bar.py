"""A progress bar of prompts, on a terminal only."""

import shutil
from typing import TextIO

from engine.clock import now_ns

_BAR_CELLS = 24
_REDRAW_NS = 100_000_000
_MINUTE_S, _HOUR_S = 60, 3600


class ProgressBar:
    """Shows how many prompts are done.

    Args:
        total: Prompts.
        out: Redrawn ten times a second at most; anything but a terminal gets nothing.
        done: Prompts that were done before.
    """

    def __init__(self, total: int, out: TextIO, done: int = 0) -> None:
        self._total = total
        self._out = out
        self._before = self._done = done
        self._tokens = 0
        self._started_ns = self._shown_ns = now_ns()
        self._is_terminal = out.isatty()
        self._show()

    def add(self, prompts: int, tokens: int) -> None:
        """Count prompts that are done now, and the tokens of their answers."""
        self._done += prompts
        self._tokens += tokens
        if now_ns() - self._shown_ns >= _REDRAW_NS:
            self._show()

    def close(self) -> None:
        """Show the end."""
        self._show("\n")

    def _show(self, end: str = "") -> None:
        self._shown_ns = now_ns()
        if self._is_terminal:
            line = self.line()[: shutil.get_terminal_size().columns - 1]
            self._out.write(f"\r{line}\x1b[K{end}")
            self._out.flush()

    def line(self) -> str:
        """Return what is shown."""
        share = self._done / max(1, self._total)
        bar = ("█" * round(share * _BAR_CELLS)).ljust(_BAR_CELLS, "░")
        elapsed_s = max(1e-9, (now_ns() - self._started_ns) / 1e9)
        line = f"{bar} {self._done}/{self._total}  {self._tokens / elapsed_s:.0f} tok/s"
        new = self._done - self._before
        if new and self._done < self._total:
            line += f"  {_duration(elapsed_s / new * (self._total - self._done))} left"
        return line


def _duration(seconds: float) -> str:
    if seconds < _MINUTE_S:
        return f"{seconds:.0f} s"
    if seconds < _HOUR_S:
        return f"{seconds / _MINUTE_S:.0f} min"
    return f"{seconds / _HOUR_S:.1f} h"
