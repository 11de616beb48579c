"""The table of LoRA adapters: one row each, and a line below for each engine that lacks it."""

from typing import Final

from appliance.supervisor.admin.schemas import AdapterOnEngine, AdapterRow, AdapterState
from dashboard.store.state import State
from dashboard.view.lines import (
    BAD,
    DIM,
    GOOD,
    INFO,
    PLAIN,
    WARN,
    Column,
    Line,
    Piece,
    Row,
    cells,
    header,
    line,
    pick,
)
from dashboard.view.text import NOTHING, age, clean, size

_HASH_DIGITS: Final = 8

LOOKS: Final[dict[AdapterState, tuple[str, str, str]]] = {
    "loaded": ("●", "LOADED", GOOD),
    "loading": ("◐", "LOADING", INFO),
    "missing": ("○", "MISSING", WARN),
    "error": ("✗", "ERROR", BAD),
    "removed": ("·", "REMOVED", DIM),
}
"""Glyph, word and tone of a state."""

_COLUMNS: Final = (
    Column("ADAPTER", 18),
    Column("STATE", 9),
    Column("PIN", 3),
    Column("RANK", 4, right=True),
    Column("SIZE", 7, right=True),
    Column("RUN", 3, right=True),
    Column("USED", 5, right=True),
    Column("MODEL", 16, rank=2),
    Column("CONTENT", 8, rank=3),
    Column("TARGETS", 24, rank=5),
    Column("PATH", 30, rank=4),
    Column("ENGINES", 16),
)


def adapters_header(width: int) -> Line:
    """Titles of the table."""
    return line(" ", *header(pick(_COLUMNS, width)))


def adapter_rows(state: State, now_s: float, width: int) -> list[Row]:
    """One row an adapter; why an engine does not have it stands below."""
    columns = pick(_COLUMNS, width)
    rows: list[Row] = []
    for adapter in sorted(state.adapters.values(), key=lambda row: row.name):
        values = _values(state, adapter, now_s)
        rows.append(Row(adapter.name, cells(columns, [values[column.title] for column in columns])))
        rows += [Row("", _complaint(each)) for each in adapter.engines if each.error]
    return rows


def adapters_summary(state: State) -> str:
    """For the frame of the panel: how many are in what state."""
    words: dict[str, int] = {}
    for adapter in state.adapters.values():
        words[adapter.state] = words.get(adapter.state, 0) + 1
    return " · ".join(f"{number} {word}" for word, number in words.items())


def root_lines(state: State) -> list[Line]:
    """Where adapters may come from."""
    system = state.system
    if system is None:
        return []
    if not system.adapter_roots:
        text = "none may be loaded: start with `serve --adapter-root DIR`"
        return [line(Piece(f" {text}", WARN))]
    roots = ", ".join(clean(root) for root in system.adapter_roots)
    return [line(Piece(" roots ", DIM), roots)]


def _complaint(each: AdapterOnEngine) -> Line:
    return line(Piece(f"   └ not on {clean(each.engine)}: {clean(each.error or '')}", BAD))


def _values(state: State, adapter: AdapterRow, now_s: float) -> dict[str, Piece]:
    glyph, word, tone = LOOKS[adapter.state]
    return {
        "ADAPTER": Piece(clean(adapter.name)),
        "STATE": Piece(f"{glyph} {word}", tone),
        "PIN": Piece("pin" if adapter.pinned else NOTHING, PLAIN if adapter.pinned else DIM),
        "RANK": Piece(NOTHING if adapter.rank is None else str(adapter.rank)),
        "SIZE": Piece(size(adapter.num_bytes)),
        "RUN": Piece(str(adapter.running_requests)),
        "USED": Piece(_used(state, adapter, now_s), DIM),
        "MODEL": Piece(clean(adapter.model)),
        "CONTENT": Piece(clean(adapter.content_hash[:_HASH_DIGITS]) or NOTHING, DIM),
        "TARGETS": Piece(clean(" ".join(adapter.targets)), DIM),
        "PATH": Piece(clean(adapter.path), DIM),
        "ENGINES": Piece(" ".join(_on_engine(each) for each in adapter.engines)),
    }


def _used(state: State, adapter: AdapterRow, now_s: float) -> str:
    if adapter.running_requests:
        return "now"
    if adapter.last_used_at is None:
        return NOTHING
    return age((state.server_now(now_s) - adapter.last_used_at).total_seconds())


def _on_engine(each: AdapterOnEngine) -> str:
    """`e0●` in a slot, `e0•` in memory, `e0○` elsewhere."""
    if each.state != "loaded":
        return f"{clean(each.engine)}{LOOKS[each.state][0]}"
    return f"{clean(each.engine)}{'●' if each.active else '•'}"
