"""The invented promises: a month that went well so far, and what the demo adds to it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from appliance.supervisor.admin.schemas import BurnRate, RequestRow, SloName, SloRow

_WINDOWS: Final[tuple[tuple[Literal["5m", "30m", "1h", "2h", "6h", "1d", "3d"], float], ...]] = (
    ("5m", 1.0),
    ("30m", 0.7),
    ("1h", 0.5),
    ("2h", 0.4),
    ("6h", 0.25),
    ("1d", 0.15),
    ("3d", 0.1),
)
"""Share of a window that what just happened makes up."""
_USUAL_BURN: Final = 0.6
_PAGE, _TICKET = 14.4, 3.0
"""Burn rates of the Google SRE workbook, for a page and for a ticket."""


@dataclass(frozen=True, slots=True)
class _Promise:
    name: SloName
    objective: float
    threshold_ms: float | None
    good: int
    bad: int
    is_bad: Callable[[RequestRow], bool]


def _failed(row: RequestRow) -> bool:
    return row.state == "failed"


def _late(row: RequestRow) -> bool:
    return row.ttft_ms is not None and row.ttft_ms > _TTFT_MS


def _slow(row: RequestRow) -> bool:
    return row.tokens_per_s is not None and 1000 / row.tokens_per_s > _TPOT_MS


_TTFT_MS, _TPOT_MS = 1000.0, 100.0
_PROMISES: Final = (
    _Promise("availability", 0.999, None, 182_340, 98, _failed),
    _Promise("ttft", 0.95, _TTFT_MS, 177_215, 4_310, _late),
    _Promise("tpot", 0.99, _TPOT_MS, 181_020, 505, _slow),
)


def slo_rows(recent: Sequence[RequestRow], ended: Sequence[RequestRow]) -> list[SloRow]:
    """One row a promise."""
    return [_row(promise, recent, ended) for promise in _PROMISES]


def _row(promise: _Promise, recent: Sequence[RequestRow], ended: Sequence[RequestRow]) -> SloRow:
    allowed = 1 - promise.objective
    bad = promise.bad + sum(promise.is_bad(row) for row in ended)
    good = promise.good + len(ended) - (bad - promise.bad)
    left = 1 - bad / (good + bad) / allowed
    now = sum(promise.is_bad(row) for row in recent) / len(recent) / allowed if recent else 0.0
    burn = [
        BurnRate(window=window, rate=round(now * share + _USUAL_BURN * (1 - share), 2))
        for window, share in _WINDOWS
    ]
    return SloRow(
        name=promise.name,
        objective=promise.objective,
        threshold_ms=promise.threshold_ms,
        good=good,
        bad=bad,
        ratio=good / (good + bad),
        budget_left=left,
        burn=burn,
        state=_state(left, {rate.window: rate.rate or 0.0 for rate in burn}),
    )


def _state(left: float, burn: dict[str, float]) -> Literal["ok", "burning", "paging", "broken"]:
    if left < 0:
        return "broken"
    if min(burn["5m"], burn["1h"]) > _PAGE:
        return "paging"
    return "burning" if min(burn["30m"], burn["6h"]) > _TICKET else "ok"
