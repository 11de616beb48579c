"""The time axis of a waterfall: bars in eighths of a cell, a scale that shows TTFT and the rest."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from dashboard.view.lines import fit
from dashboard.view.text import milliseconds

_EIGHTHS: Final = "▏▎▍▌▋▊▉"
_SHARE: Final = 0.62
"""Share of the width that the time to the first token gets when the axis is split."""
_SPLIT_BELOW: Final = 0.55
"""The axis is split if the first token came in this first part of the request."""
_LEAST_TTFT_MS: Final = 0.05


@dataclass(frozen=True, slots=True)
class Axis:
    """Maps milliseconds since the start to cells.

    With `split_ms` the axis is linear up to it and linear, but compressed, after it: decoding
    takes most of the time of a long answer and would squeeze all else into one cell.
    """

    total_ms: float
    width: int
    split_ms: float | None = None

    @property
    def split_cell(self) -> int | None:
        """Where the scale changes."""
        return None if self.split_ms is None else round(self.width * _SHARE)

    def cell(self, at_ms: float) -> float:
        """Position of a moment, from 0 to `width`."""
        at_ms = min(max(0.0, at_ms), self.total_ms)
        split_cell = self.split_cell
        if self.split_ms is None or split_cell is None:
            return self.width * at_ms / self.total_ms if self.total_ms else 0.0
        if at_ms <= self.split_ms:
            return split_cell * at_ms / self.split_ms
        after = (at_ms - self.split_ms) / (self.total_ms - self.split_ms)
        return split_cell + (self.width - split_cell) * after

    def bar(self, start_ms: float, end_ms: float) -> str:
        """A bar from start to end, at least a sliver."""
        start, end = self.cell(start_ms), self.cell(end_ms)
        first = min(int(start + 0.5), self.width - 1)
        cells = end - first if end - start >= 1 else end - start
        eighths = max(1, round(cells * 8))
        full, part = divmod(eighths, 8)
        text = "█" * full + (_EIGHTHS[part - 1] if part else "")
        return self._ruled(" " * first + text)

    def ticks(self, moments_ms: Iterable[float]) -> str:
        """A sliver at each moment."""
        marks = [" "] * self.width
        for at_ms in moments_ms:
            marks[min(int(self.cell(at_ms)), self.width - 1)] = _EIGHTHS[0]
        return self._ruled("".join(marks))

    def empty(self) -> str:
        """Only the ruling."""
        return self._ruled("")

    def _ruled(self, text: str) -> str:
        """Fill to the full width and draw the line where the scale changes, under the bars."""
        text = text[: self.width].ljust(self.width)
        cell = self.split_cell
        if cell is None or cell >= self.width or text[cell] != " ":
            return text
        return f"{text[:cell]}┊{text[cell + 1 :]}"

    def scale(self) -> str:
        """The labels above the bars."""
        end = milliseconds(self.total_ms)
        split_cell = self.split_cell
        if self.split_ms is None or split_cell is None:
            return _labels(self.width, [(0, "0"), *self._inner(self.width, self.total_ms)], end)
        inner = self._inner(split_cell, self.split_ms)
        first_token = (split_cell, f"◆{milliseconds(self.split_ms)}")
        return _labels(self.width, [(0, "0"), *inner, first_token], end)

    @staticmethod
    def _inner(cells: int, until_ms: float) -> list[tuple[int, str]]:
        parts = 4 if cells >= _ROOM_FOR_QUARTERS else 2
        return [
            (round(cells * part / parts), milliseconds(until_ms * part / parts))
            for part in range(1, parts)
        ]


_ROOM_FOR_QUARTERS: Final = 36


def _labels(width: int, labels: list[tuple[int, str]], end: str) -> str:
    """Place labels at their cells; one that would touch its neighbour is left out."""
    text = ""
    room = width - len(end) - 1
    for cell, label in labels:
        if len(text) <= cell and cell + len(label) <= room:
            text = text.ljust(cell) + label + " "
    return fit(text, width - len(end)) + end


def axis_for(total_ms: float, ttft_ms: float | None, width: int, *, linear: bool) -> Axis:
    """The axis that suits a request."""
    split = (
        not linear and ttft_ms is not None and _LEAST_TTFT_MS < ttft_ms < total_ms * _SPLIT_BELOW
    )
    return Axis(total_ms, width, ttft_ms if split else None)
