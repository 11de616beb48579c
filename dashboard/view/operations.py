"""Operations and profiles as tables."""

from collections.abc import Sequence
from typing import Final, cast

from appliance.supervisor.admin.schemas import Operation, ProfileRow
from dashboard.store.state import State
from dashboard.view.lines import (
    BAD,
    DIM,
    GOOD,
    INFO,
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
from dashboard.view.page import Page
from dashboard.view.text import NOTHING, age, clean, clock, count, meter, size

LOOKS: Final = {
    "queued": ("◌", WARN),
    "running": ("◑", INFO),
    "done": ("✓", GOOD),
    "failed": ("✗", BAD),
    "canceled": ("■", WARN),
}
"""Glyph and tone by state, of operations and profiles."""
_OPERATIONS: Final = (
    Column("KIND", 12),
    Column("TARGET", 10),
    Column("STATE", 10),
    Column("PROGRESS", 16, rank=1),
    Column("BEGUN", 8, rank=2),
    Column("TOOK", 6, right=True),
    Column("BY", 10, rank=3),
    Column("DETAIL", 20),
)
_PROFILES: Final = (
    Column("PROFILE", 14),
    Column("ENGINE", 6),
    Column("STATE", 10),
    Column("STEPS", 5, right=True),
    Column("BEGUN", 8),
    Column("BY", 10, rank=2),
    Column("SIZE", 7, right=True),
    Column("FILES", 20),
)


def operations_header(width: int) -> Line:
    """Titles of the operations."""
    return line(" ", *header(pick(_OPERATIONS, width)))


def operation_rows(state: State, now_s: float, width: int) -> list[Row]:
    """Newest first."""
    columns = pick(_OPERATIONS, width)
    newest = sorted(state.operations.values(), key=lambda row: row.created_at, reverse=True)
    rows: list[Row] = []
    for row in newest:
        values = _operation(row, state, now_s)
        rows.append(Row(row.id, cells(columns, [values[column.title] for column in columns])))
    return rows


def _operation(row: Operation, state: State, now_s: float) -> dict[str, Piece]:
    glyph, tone = LOOKS[row.state]
    until = row.ended_at or state.server_now(now_s)
    return {
        "KIND": Piece(row.kind),
        "TARGET": Piece(clean(row.target)),
        "STATE": Piece(f"{glyph} {row.state}", tone),
        "PROGRESS": Piece(_progress(row), INFO),
        "BEGUN": Piece(clock(row.created_at), DIM),
        "TOOK": Piece(age((until - row.created_at).total_seconds())),
        "BY": Piece(clean(row.actor), DIM),
        "DETAIL": _detail(row),
    }


def _progress(row: Operation) -> str:
    if row.progress is None or row.ended_at is not None:
        return ""
    ratio = row.progress.done / row.progress.total if row.progress.total else 0.0
    return f"{ratio * 100:3.0f}% {meter(ratio, 10)}"


def _detail(row: Operation) -> Piece:
    if row.error:
        return Piece(clean(row.error), BAD)
    if row.phase and row.ended_at is None:
        return Piece(clean(row.phase))
    facts = [f"{clean(key)} {_value(value)}" for key, value in (row.result or {}).items()]
    return Piece(" · ".join(facts), DIM)


def _value(value: object) -> str:
    if isinstance(value, int) and value > _BIG:
        return count(value)
    if isinstance(value, list):
        return str(len(cast("list[object]", value)))
    return clean(str(value), 60)


_BIG: Final = 10_000


def operation_page(row: Operation) -> Page:
    """All that is known of an operation."""
    facts: list[tuple[str, str]] = [
        ("id", row.id),
        ("state", row.state),
        ("phase", row.phase or ""),
        ("by", row.actor),
        ("begun", clock(row.created_at)),
        ("ended", clock(row.ended_at) if row.ended_at else ""),
        ("trace", row.trace_id),
        ("error", row.error or ""),
        *((key, str(value)) for key, value in (row.result or {}).items()),
    ]
    lines = [
        line(Piece(f" {clean(name):<16} ", DIM), clean(value)) for name, value in facts if value
    ]
    return Page(
        f"{row.kind} {clean(row.target)}", lines, row.state, is_final=row.ended_at is not None
    )


def profiles_header(width: int) -> Line:
    """Titles of the profiles."""
    return line(" ", *header(pick(_PROFILES, width)))


def profile_rows(profiles: Sequence[ProfileRow], width: int) -> list[Row]:
    """In the order of the server: newest first."""
    columns = pick(_PROFILES, width)
    rows: list[Row] = []
    for row in profiles:
        values = _profile(row)
        rows.append(Row(row.id, cells(columns, [values[column.title] for column in columns])))
    return rows


def _profile(row: ProfileRow) -> dict[str, Piece]:
    glyph, tone = LOOKS[row.state]
    files = ", ".join(clean(file.name) for file in row.files)
    total = sum(file.num_bytes for file in row.files)
    return {
        "PROFILE": Piece(clean(row.id)),
        "ENGINE": Piece(clean(row.engine)),
        "STATE": Piece(f"{glyph} {row.state}", tone),
        "STEPS": Piece(NOTHING if row.steps is None else str(row.steps)),
        "BEGUN": Piece(clock(row.created_at), DIM),
        "BY": Piece(clean(row.actor), DIM),
        "SIZE": Piece(size(total) if row.files else NOTHING),
        "FILES": Piece(clean(row.error), BAD) if row.error else Piece(files),
    }
