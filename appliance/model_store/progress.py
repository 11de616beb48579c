"""Shows how far a pull is."""

import shutil
from collections.abc import Callable
from typing import TextIO

Progress = Callable[[str, int, int], None]
"""Called with (phase, bytes done, bytes in all); phases: `wait`, `look`, `download`, `check`,
`unpack`."""

_BAR_CELLS = 30
_SAID = {"wait": "another pull is running, waiting for it", "look": "asking what there is"}
_PHASES = {
    "download": "downloading",
    "check": "checking the hash",
    "unpack": "unpacking",
}


class ProgressBar:
    """Draws how far a pull is: one line that redraws on a terminal, a line a phase elsewhere."""

    def __init__(self, name: str, out: TextIO) -> None:
        self._name = name
        self._out = out
        self._redraws = out.isatty()
        self._phase: str | None = None
        self._drawn: str | None = None

    def __call__(self, phase: str, done_bytes: int, total_bytes: int) -> None:
        """Show a `Progress` report."""
        if phase in _SAID:
            if phase != self._phase:
                self._say(f"{self._name}: {_SAID[phase]}")
        elif self._redraws:
            self._redraw(_PHASES[phase], done_bytes, total_bytes)
        elif phase != self._phase:
            self._say(f"{self._name}: {_PHASES[phase]}, {total_bytes / 1e6:.0f} MB")
        self._phase = phase

    def close(self) -> None:
        """End the line."""
        if self._drawn is not None:
            self._out.write("\n")
            self._out.flush()
            self._drawn = None

    def _say(self, line: str) -> None:
        self._out.write(f"{line}\n")
        self._out.flush()

    def _redraw(self, phase: str, done_bytes: int, total_bytes: int) -> None:
        share = min(1.0, done_bytes / max(1, total_bytes))
        bar = ("█" * round(share * _BAR_CELLS)).ljust(_BAR_CELLS, "░")
        amounts = f"{done_bytes / 1e6:.0f}/{total_bytes / 1e6:.0f} MB"
        line = f"{self._name} {bar} {share:4.0%}  {amounts}  {phase}"
        line = line[: shutil.get_terminal_size().columns - 1]
        if line != self._drawn:
            self._out.write(f"\r{line}\x1b[K")
            self._out.flush()
            self._drawn = line
