"""The top line: which instance, how many engines serve, in what role, how fresh."""

from typing import Final

from rich.cells import cell_len

from dashboard.store.state import State
from dashboard.view.lines import BAD, BOLD, DIM, GOOD, WARN, Line, Piece, line, plain, spread
from dashboard.view.slo import slo_badge
from dashboard.view.text import age, clean, clock

WIDE: Final = 100
_NAME_WIDTH: Final = 24
_SHORT_NAME: Final = 16
BACK: Final = "\N{SINGLE LEFT-POINTING ANGLE QUOTATION MARK}"


def top_line(state: State, label: str, role: str, now_s: float, width: int) -> Line:
    """The line on top of fleet and requests."""
    wide, badge = width >= WIDE, _badge(state)
    load = _load(state) if wide else Piece("")
    name = _instance(state, label)
    lead = line(Piece(" quarterdeck ", BOLD), f"{name}  ")
    if badge.text and not wide:  # the promise is worth more than the product's name
        lead = line(Piece(f" {name[-_SHORT_NAME:]} ", BOLD))
    left = line(*lead, ready(state), "  " if badge.text else "", badge)
    right = _right(state, role, now_s)
    if cell_len(plain((*left, load, *right))) <= width:  # what does not fit is left out whole
        left = line(*left, load)
    return spread(left, right, width)


def _badge(state: State) -> Piece:
    return slo_badge(state.stats.slos) if state.stats else Piece("")


def crumb_line(state: State, crumbs: str, outcome: Piece, now_s: float, width: int) -> Line:
    """The line on top of a screen that was opened from another one."""
    left = line(Piece(f" {BACK} {crumbs}  ", BOLD), outcome)
    return spread(left, line(" ", *freshness(state, now_s), " "), width)


def _instance(state: State, label: str) -> str:
    address = state.system.control_plane if state.system else label
    name = clean(address.partition("://")[2] or address)
    return name if len(name) <= _NAME_WIDTH else f"…{name[1 - _NAME_WIDTH :]}"


def ready(state: State) -> Piece:
    """How many engines serve."""
    total = len(state.engines)
    serving = sum(engine.state == "ready" for engine in state.engines.values())
    if serving and serving == total:
        return Piece(f"● READY {serving}/{total}", GOOD)
    if serving:
        return Piece(f"● READY {serving}/{total}", WARN)
    return Piece(f"○ READY 0/{total}", WARN if total else DIM)


def _load(state: State) -> Piece:
    if state.stats is None:
        return Piece("")
    held = f" held {state.stats.held}" if state.stats.held else ""
    return Piece(f"  run {state.stats.running} wait {state.stats.waiting}{held}", DIM)


def _right(state: State, role: str, now_s: float) -> Line:
    return line(" ", Piece(role, DIM), "  ", *freshness(state, now_s), f"  {_time(state, now_s)} ")


def freshness(state: State, now_s: float) -> Line:
    """`LIVE 1s`, or `STALE` and for how long."""
    silence_s = state.silence_s(now_s)
    if silence_s is None:
        return line(Piece("✗ NO LINK" if state.link_reason else "… CONNECTING", WARN))
    if state.is_stale(now_s):
        return line(Piece(f"✗ STALE {age(float(int(silence_s)))}", BAD))
    return line(Piece(f"LIVE {silence_s:.0f}s", GOOD))


def _time(state: State, now_s: float) -> str:
    return clock(state.server_now(now_s))
