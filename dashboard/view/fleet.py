"""The engines table of the fleet screen."""

from typing import Final

from appliance.supervisor.admin.schemas import EngineRow, EngineStateName
from dashboard.store.state import State
from dashboard.view.chart import blocks
from dashboard.view.lines import (
    BAD,
    DIM,
    GOOD,
    INFO,
    PLAIN,
    REST,
    WARN,
    Column,
    Line,
    Piece,
    Row,
    cells,
    fit,
    header,
    line,
    pick,
)
from dashboard.view.text import NOTHING, age, clean, count, meter, restarts, size

KV_HIGH: Final = 0.9
HEARTBEAT_LATE_S: Final = 3.0

LOOKS: Final[dict[EngineStateName, tuple[str, str, str]]] = {
    "starting": ("◐", "STARTING", WARN),
    "ready": ("●", "READY", GOOD),
    "draining": ("◒", "DRAINING", WARN),
    "asleep": ("☾", "ASLEEP", REST),
    "waking": ("◑", "WAKING", INFO),
    "stopped": ("○", "STOPPED", DIM),
    "backoff": ("↻", "BACKOFF", WARN),
    "crash_loop": ("✗", "CRASH LOOP", BAD),
    "failed": ("✗", "FAILED", BAD),
}
"""Glyph, word and tone of a state."""

_COLUMNS: Final = (
    Column("ID", 3),
    Column("STATE", 12),
    Column("MODEL", 20, rank=2),
    Column("DEVICE", 7, rank=4),
    Column("DTYPE", 8, rank=6),
    Column("RUN", 3, right=True),
    Column("WAIT", 4, right=True),
    Column("KV%", 4, right=True),
    Column("TOK/S", 6, right=True),
    Column("TREND", 12, rank=1),
    Column("MEM", 12),
    Column("PID", 8, right=True, rank=3),
    Column("EPOCH", 5, right=True, rank=5),
    Column("NOTE", 20),
)


def engines_header(width: int) -> Line:
    """Titles of the engines table."""
    return line(" ", *header(pick(_COLUMNS, width)))


def engine_rows(state: State, now_s: float, width: int) -> list[Row]:
    """One row an engine."""
    rows: list[Row] = []
    for engine in state.engines.values():
        show = _loading if engine.progress and engine.state != "ready" else _serving
        rows.append(Row(engine.id, show(state, engine, now_s, pick(_COLUMNS, width))))
    return rows


def fleet_summary(state: State) -> str:
    """For the frame of the panel: how many engines are in what state."""
    words: dict[str, int] = {}
    for engine in state.engines.values():
        word = {"ready": "serving"}.get(engine.state, engine.state.replace("_", " "))
        words[word] = words.get(word, 0) + 1
    parts = [f"{number} {word}" for word, number in words.items()]
    return " · ".join([f"{len(state.engines)} total", *parts])


def state_of(engine: EngineRow) -> Piece:
    """Glyph and word of the engine's state."""
    glyph, word, tone = LOOKS[engine.state]
    level = f" L{engine.sleep_level}" if engine.state == "asleep" and engine.sleep_level else ""
    return Piece(f"{glyph} {word}{level}", tone)


def _serving(state: State, engine: EngineRow, now_s: float, columns: tuple[Column, ...]) -> Line:
    values = _values(state, engine, now_s)
    return cells(columns, [values[column.title] for column in columns])


def _values(state: State, engine: EngineRow, now_s: float) -> dict[str, Piece]:
    awake = engine.state in ("ready", "draining")
    trend = state.trends.of(f"engine:{engine.id}")
    return {
        "ID": Piece(clean(engine.id)),
        "STATE": state_of(engine),
        "MODEL": Piece(clean(engine.model)),
        "DEVICE": Piece(clean(engine.device)),
        "DTYPE": Piece(clean(engine.dtype or NOTHING)),
        "RUN": _when(awake, count(engine.running)),
        "WAIT": Piece(count(engine.waiting), WARN) if engine.waiting else _when(awake, "0"),
        "KV%": _kv(engine) if awake else Piece(NOTHING, DIM),
        "TOK/S": _when(awake, count(engine.tokens_per_s)),
        "TREND": Piece(blocks(trend, 12), INFO),
        "MEM": _memory(state, engine),
        "PID": _when(engine.pid is not None, str(engine.pid)),
        "EPOCH": Piece(str(engine.epoch)),
        "NOTE": _note(state, engine, now_s),
    }


def _when(known: bool, text: str) -> Piece:
    return Piece(text) if known else Piece(NOTHING, DIM)


def _kv(engine: EngineRow) -> Piece:
    high = engine.kv_used_ratio >= KV_HIGH
    mark = "▲" if high else ""
    return Piece(f"{engine.kv_used_ratio * 100:.0f}{mark}", BAD if high else PLAIN)


def _memory(state: State, engine: EngineRow) -> Piece:
    if engine.resident_bytes is None:
        return Piece(NOTHING, DIM)
    peak = state.peak_bytes.get(engine.id) or 1
    if engine.sleep_level:
        peak = max(peak, engine.resident_bytes + (engine.weights_bytes or 0))
    return Piece(f"{size(engine.resident_bytes):>7} {meter(engine.resident_bytes / peak, 4)}")


def _note(state: State, engine: EngineRow, now_s: float) -> Piece:
    """The one thing that is worth saying about the engine, most urgent first."""
    server_now = state.server_now(now_s)
    if engine.state == "backoff" and engine.next_restart_at:
        left_s = (engine.next_restart_at - server_now).total_seconds()
        return Piece(f"restart in {age(left_s)} {clean(engine.last_exit or '')}", WARN)
    if engine.reason:
        return Piece(clean(engine.reason), LOOKS[engine.state][2])
    if engine.heartbeat_age_s is not None and engine.heartbeat_age_s > HEARTBEAT_LATE_S:
        return Piece(f"no heartbeat for {age(engine.heartbeat_age_s)}", BAD)
    return _quiet_note(engine, (server_now - engine.since).total_seconds())


def _quiet_note(engine: EngineRow, state_s: float) -> Piece:
    if engine.state == "draining":
        return Piece(f"{engine.running + engine.waiting} left to finish", WARN)
    if engine.state == "asleep":
        return Piece(f"for {age(state_s)}, w wakes", DIM)
    if engine.dtype_reason:
        return Piece(f"{clean(engine.dtype or '')}: {clean(engine.dtype_reason)}", WARN)
    lora = f" +{len(engine.adapters)} LoRA" if engine.adapters else ""
    return Piece(f"{clean(engine.model)}{lora} {age(state_s)}{restarts(engine.restarts)}", DIM)


def _loading(state: State, engine: EngineRow, now_s: float, columns: tuple[Column, ...]) -> Line:
    """A row that says how far something is, across the columns that have no numbers yet."""
    progress = engine.progress
    assert progress is not None
    ratio = progress.done / progress.total if progress.total else 0.0
    lead = cells(columns[:2], [Piece(clean(engine.id)), state_of(engine)])
    since_s = (state.server_now(now_s) - engine.since).total_seconds()
    room = sum(column.width + 1 for column in columns[2:])
    bar_width = max(10, min(40, room - 50))
    text = f"{fit(clean(engine.phase or 'loading'), 14)} "
    done, total = _amount(progress.done, progress.unit), _amount(progress.total, progress.unit)
    rest = f" {ratio * 100:3.0f}%  {done}/{total}  {age(since_s)}"
    tail = fit(rest, room - len(text) - bar_width)
    return (*lead, Piece(text), Piece(meter(ratio, bar_width).replace(" ", "░"), INFO), Piece(tail))


def _amount(value: int, unit: str) -> str:
    return size(value) if unit == "bytes" else f"{count(value)} {clean(unit)}"
