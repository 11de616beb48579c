"""The promises: how they are kept, what is left of the error budget, how fast it goes."""

from collections.abc import Callable, Sequence
from typing import Final

from rich.cells import cell_len

from appliance.supervisor.admin.schemas import SloRow
from dashboard.view.lines import (
    BAD,
    DIM,
    GOOD,
    PLAIN,
    WARN,
    Column,
    Line,
    Piece,
    cells,
    header,
    line,
    pick,
    plain,
)
from dashboard.view.text import NOTHING, count, meter, milliseconds

LOOKS: Final = {
    "ok": ("✓", "ok", GOOD),
    "unknown": ("·", "too few", DIM),
    "burning": ("▲", "burning", WARN),
    "paging": ("✗", "PAGING", BAD),
    "broken": ("✗", "BROKEN", BAD),
}
"""Glyph, word and tone of a state."""
_ORDER: Final = ("unknown", "ok", "burning", "paging", "broken")
_NAMES: Final = {"availability": "availability", "ttft": "TTFT", "tpot": "time/token"}
_SHORT_NAMES: Final = {"availability": "avail", "ttft": "TTFT", "tpot": "time/token"}
_SHOWN_BURN: Final = ("5m", "1h", "6h", "3d")
_FAST: Final = 1.0
_COLUMNS: Final = (
    Column("PROMISE", 24),
    Column("KEPT", 8, right=True),
    Column("BAD", 5, right=True, rank=3),
    Column("OF", 6, right=True, rank=4),
    Column("BUDGET LEFT", 18),
    Column("BURN 5m", 7, right=True, rank=2),
    Column("1h", 6, right=True),
    Column("6h", 6, right=True),
    Column("3d", 6, right=True, rank=1),
    Column("STATE", 10),
)


def worst(slos: Sequence[SloRow]) -> SloRow | None:
    """The promise that is in the worst state."""
    return max(slos, key=lambda row: _ORDER.index(row.state), default=None)


def slo_badge(slos: Sequence[SloRow]) -> Piece:
    """For the top line: `SLO ✓ ok`; empty when nothing is promised."""
    row = worst(slos)
    if row is None:
        return Piece("")
    glyph, word, tone = LOOKS[row.state]
    return Piece(f"SLO {glyph} {word}", tone)


def promise(row: SloRow) -> str:
    """`TTFT ≤500ms 99%`."""
    limit = f" ≤{milliseconds(row.threshold_ms)}" if row.threshold_ms is not None else ""
    return f"{_NAMES[row.name]}{limit} {percent(row.objective)}"


def percent(share: float) -> str:
    """`99.9%`: with as many digits as it was given with."""
    return f"{share * 100:.6g}%"


def slo_line(slos: Sequence[SloRow], width: int) -> Line:
    """All promises in one line, the worst first; where it is short, burn rates go, then budgets."""
    lines = [_promises(slos, told) for told in (_budget_and_burn, budget, _nothing)]
    return next((found for found in lines if cell_len(plain(found)) <= width), lines[-1])


def _promises(slos: Sequence[SloRow], told: Callable[[SloRow], str]) -> Line:
    pieces: list[Piece] = [Piece(" SLO", DIM)]
    for row in sorted(slos, key=lambda row: _ORDER.index(row.state), reverse=True):
        glyph, word, tone = LOOKS[row.state]
        pieces.append(Piece(f"  {_SHORT_NAMES[row.name]} {glyph} {word}", tone))
        pieces.append(Piece(f" {text}" if (text := told(row)) else ""))
    return tuple(pieces)


def _budget_and_burn(row: SloRow) -> str:
    return budget(row) + _fastest(row)


def _nothing(_: SloRow) -> str:
    return ""


def budget(row: SloRow) -> str:
    """`82% left`, or by how much the promise is broken."""
    left = row.budget_left
    if left is None:
        return ""
    return f"{left * 100:.0f}% left" if left >= 0 else f"{-left * 100:.0f}% over"


def _fastest(row: SloRow) -> str:
    """The burn of the last hour, where it is worth a word."""
    rate = _burn(row, "1h")
    return f" burn {rate:.1f}x" if rate is not None and rate > _FAST else ""


def _burn(row: SloRow, window: str) -> float | None:
    return next((burn.rate for burn in row.burn if burn.window == window), None)


def slo_table(slos: Sequence[SloRow], width: int) -> list[Line]:
    """A row a promise, with budget and burn rates."""
    columns = pick(_COLUMNS, width)
    lines = [line(" ", *header(columns))]
    for row in slos:
        values = _values(row)
        lines.append(line(" ", *cells(columns, [values[column.title] for column in columns])))
    return lines


def _values(row: SloRow) -> dict[str, Piece]:
    glyph, word, tone = LOOKS[row.state]
    kept = NOTHING if row.ratio is None else percent(round(row.ratio, 5))
    values = {
        "PROMISE": Piece(promise(row)),
        "KEPT": Piece(kept, tone),
        "BAD": Piece(count(row.bad), DIM),
        "OF": Piece(count(row.good + row.bad), DIM),
        "BUDGET LEFT": Piece(_budget_bar(row), tone),
        "STATE": Piece(f"{glyph} {word}", tone),
    }
    for window in _SHOWN_BURN:
        rate = _burn(row, window)
        text = NOTHING if rate is None else f"{rate:.1f}x"
        title = "BURN 5m" if window == "5m" else window
        values[title] = Piece(text, WARN if rate is not None and rate > _FAST else PLAIN)
    return values


def _budget_bar(row: SloRow) -> str:
    if row.budget_left is None:
        return NOTHING
    text = f"{budget(row):>9}"
    return text if row.budget_left < 0 else f"{text} {meter(row.budget_left, 8)}"
