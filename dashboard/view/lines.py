"""Lines of coloured text: what view functions return and widgets draw.

A tone is a Rich style string in the terminal's own sixteen colours. Colour never says anything
alone: a glyph or a word stands beside it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from textwrap import wrap
from typing import Final, NamedTuple

from rich.cells import cell_len, set_cell_size

PLAIN: Final = ""
BOLD: Final = "bold"
DIM: Final = "dim"
GOOD: Final = "green"
WARN: Final = "yellow"
BAD: Final = "red"
INFO: Final = "cyan"
REST: Final = "blue"


class Piece(NamedTuple):
    """A run of text in one tone."""

    text: str
    tone: str = PLAIN


Line = tuple[Piece, ...]


class Row(NamedTuple):
    """A line that can be selected: `key` says what it stands for (empty: not selectable)."""

    key: str
    line: Line


@dataclass(frozen=True, slots=True)
class Column:
    """A column of fixed width, so that nothing is measured while data flows."""

    title: str
    width: int
    right: bool = False
    rank: int = 0
    """Where there is no room, columns of the highest rank go first."""


def line(*pieces: Piece | str) -> Line:
    """Build a line from pieces and plain strings."""
    return tuple(Piece(piece) if isinstance(piece, str) else piece for piece in pieces)


def plain(pieces: Line) -> str:
    """The text of a line without tones."""
    return "".join(piece.text for piece in pieces)


def fit(text: str, width: int, *, right: bool = False) -> str:
    """`text` in exactly `width` cells; what is cut ends in an ellipsis."""
    if width <= 0:
        return ""
    cells = cell_len(text)
    if cells > width:
        return set_cell_size(text, width - 1) + "…"
    padding = " " * (width - cells)
    return padding + text if right else text + padding


def cells(columns: Sequence[Column], values: Iterable[Piece | str]) -> Line:
    """One table row: each value in its column, a blank between columns."""
    pieces: list[Piece] = []
    for column, value in zip(columns, values, strict=True):
        text, tone = value if isinstance(value, Piece) else (value, PLAIN)
        pieces.append(Piece(fit(text, column.width, right=column.right) + " ", tone))
    return tuple(pieces)


def header(columns: Sequence[Column]) -> Line:
    """The titles of a table, dimmed."""
    titles = [Piece(column.title, DIM) for column in columns]
    return cells(columns, titles)


def pick(columns: Sequence[Column], width: int) -> tuple[Column, ...]:
    """The columns that fit into `width` beside the cursor's cell; the last takes what is left."""
    kept = list(columns)
    while _used(kept) > width and any(column.rank for column in kept):
        kept.remove(max(kept, key=lambda column: column.rank))
    rest = max(4, width - _used(kept[:-1]) - 1)
    return (*kept[:-1], replace(kept[-1], width=rest))


def _used(columns: Sequence[Column]) -> int:
    return 1 + sum(column.width + 1 for column in columns)


def spread(left: Line, right: Line, width: int) -> Line:
    """`left` at the left edge and `right` at the right one; `left` is cut if both do not fit."""
    right_cells = sum(cell_len(piece.text) for piece in right)
    room = width - right_cells
    kept: list[Piece] = []
    for piece in left:
        if room <= 0:
            break
        text = piece.text if cell_len(piece.text) <= room else fit(piece.text, room)
        kept.append(Piece(text, piece.tone))
        room -= cell_len(text)
    return (*kept, Piece(" " * max(0, room)), *right)


def wrapped(
    text: str, width: int, *, first: str = " ", indent: str = " ", tone: str = PLAIN
) -> list[Line]:
    """`text` in as many lines as it needs; `first` and `indent` stand before the lines."""
    texts = wrap(text, max(12, width - 1), initial_indent=first, subsequent_indent=indent)
    return [line(Piece(fit(text, min(cell_len(text), width)), tone)) for text in texts or [first]]
