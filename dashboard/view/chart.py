"""Charts from characters: braille areas and block sparklines."""

from collections.abc import Sequence
from typing import Final

_BLOCKS: Final = "▁▂▃▄▅▆▇█"
_LEFT_DOTS: Final = (0x00, 0x40, 0x44, 0x46, 0x47)
_RIGHT_DOTS: Final = (0x00, 0x80, 0xA0, 0xB0, 0xB8)
_BRAILLE: Final = 0x2800
_DOTS_PER_CELL: Final = 4

Samples = Sequence[float | None]


def blocks(values: Samples, width: int, peak: float | None = None) -> str:
    """A sparkline of one sample a cell, newest at the right; a gap where nothing was measured."""
    shown = list(values[-width:])
    top = peak or max((value for value in shown if value is not None), default=0.0)
    return "".join(_block(value, top) for value in shown).rjust(width)


def _block(value: float | None, top: float) -> str:
    if value is None:
        return " "
    if top <= 0:
        return _BLOCKS[0]
    step = round(min(1.0, value / top) * (len(_BLOCKS) - 1))
    return _BLOCKS[max(step, 1 if value > 0 else 0)]


def area(values: Samples, width: int, height: int, peak: float | None = None) -> list[str]:
    """A filled braille chart: two samples a cell, newest at the right, `height` rows, top first."""
    shown: list[float | None] = list(values[-2 * width :])
    shown = [None] * (2 * width - len(shown)) + shown
    top = peak or max((value for value in shown if value is not None), default=0.0)
    dots = [_dots(value, top, height) for value in shown]
    return [_area_row(dots, level) for level in range(height - 1, -1, -1)]


def _dots(value: float | None, top: float, height: int) -> int:
    """How many dots high a sample stands; a measured zero keeps one, so that it is seen."""
    if value is None:
        return 0
    if top <= 0:
        return 1
    return max(1, round(min(1.0, value / top) * height * _DOTS_PER_CELL))


def _area_row(dots: Sequence[int], level: int) -> str:
    base = level * _DOTS_PER_CELL
    filled = [min(_DOTS_PER_CELL, max(0, count - base)) for count in dots]
    pairs = zip(filled[::2], filled[1::2], strict=True)
    return "".join(_cell(left, right) for left, right in pairs)


def _cell(left: int, right: int) -> str:
    """A braille cell; a blank is a space, which every font has."""
    dots = _LEFT_DOTS[left] | _RIGHT_DOTS[right]
    return chr(_BRAILLE | dots) if dots else " "
