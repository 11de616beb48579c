"""Keeps the promises' books: how many requests were good, how fast the error budget goes.

Gateways judge requests and count; here the counts become minutes, and minutes become burn rates
over several windows. A long and a short window must agree before anybody is called: the long one
says that it matters, the short one that it has not passed.

Source: Google SRE Workbook, chapter 5, https://sre.google/workbook/alerting-on-slos/
"""

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, NamedTuple, get_args

from appliance.config.settings import SloSettings
from appliance.supervisor.admin.schemas import BurnRate, SloName, SloRow
from appliance.telemetry import names
from appliance.telemetry.accounts import Labels, Level
from appliance.telemetry.journal import Severity
from appliance.telemetry.slo_db import MinuteRow, SloDb
from appliance.telemetry.wall_clock import WallClock

Window = Literal["5m", "30m", "1h", "2h", "6h", "1d", "3d"]
State = Literal["ok", "burning", "paging", "broken", "unknown"]
Rules = tuple[tuple[Window, Window, float], ...]
"""Long window, short window, and the burn rate that both must exceed."""

WINDOWS: Final[dict[Window, int]] = {
    "5m": 5, "30m": 30, "1h": 60, "2h": 120, "6h": 360, "1d": 1440, "3d": 4320,
}  # fmt: skip
"""Minutes; the one that runs counts as whole."""
BUDGET_MINUTES: Final = 30 * 24 * 60
PAGES: Final[Rules] = (("1h", "5m", 14.4), ("6h", "30m", 6.0))
TICKETS: Final[Rules] = (("1d", "2h", 3.0), ("3d", "6h", 1.0))
MIN_BAD: Final = 5
"""In the long window: a few bad requests among few are no trend. As in the shipped alert rules, so
that nothing is said to page that pages nobody."""
FUTURE_MINUTES: Final = 10
"""Stored minutes so far ahead of the clock are of now: it was set back a little. Those further
ahead are of a clock that was wrong, and are left out."""
SAVE_NS: Final = 5_000_000_000
MINUTE_NS: Final = 60_000_000_000
TRIM: Final = 1440
"""Minutes beyond the budget's that may pile up before they are cut off."""
DANGER: Final = frozenset({"burning", "paging", "broken"})
SEVERITY: Final[dict[State, Severity]] = {
    "ok": "info", "unknown": "info", "burning": "warning", "broken": "error", "paging": "error",
}  # fmt: skip
SLOS: Final[tuple[SloName, ...]] = get_args(SloName)


class Counts(NamedTuple):
    """Requests that were judged."""

    good: int
    bad: int

    @property
    def bad_ratio(self) -> float | None:
        """Share of bad ones; None when nothing was judged."""
        total = self.good + self.bad
        return self.bad / total if total else None


class Minutes:
    """Counts by minute, as running sums: any window costs two look-ups."""

    def __init__(self) -> None:
        self._minutes: list[int] = [-1]
        self._good: list[int] = [0]
        self._bad: list[int] = [0]

    def add(self, minute: int, good: int, bad: int) -> None:
        """Add to a minute; one that lies before the last is counted into the last."""
        if minute > self._minutes[-1]:
            self._minutes.append(minute)
            self._good.append(self._good[-1])
            self._bad.append(self._bad[-1])
        self._good[-1] += good
        self._bad[-1] += bad
        if len(self._minutes) > BUDGET_MINUTES + TRIM:
            for column in (self._minutes, self._good, self._bad):
                del column[:TRIM]

    def of(self, minute: int) -> Counts:
        """Return the counts of one minute."""
        at = bisect_right(self._minutes, minute) - 1
        if at == 0 or self._minutes[at] != minute:
            return Counts(0, 0)
        return Counts(self._good[at] - self._good[at - 1], self._bad[at] - self._bad[at - 1])

    def last(self, minute: int, window: int) -> Counts:
        """Return the sum of the `window` minutes up to and with `minute`."""
        before = max(0, bisect_right(self._minutes, minute - window) - 1)
        return Counts(self._good[-1] - self._good[before], self._bad[-1] - self._bad[before])


class Change(NamedTuple):
    """A promise stands otherwise than before."""

    name: SloName
    state: State
    level: Severity
    text: str


@dataclass(frozen=True, slots=True)
class Promise:
    """One objective."""

    name: SloName
    objective: float
    threshold_s: float | None = None

    def burn(self, counts: Counts) -> float | None:
        """Return how fast the budget goes; 1 uses it up in exactly its window."""
        ratio = counts.bad_ratio
        return None if ratio is None else ratio / (1 - self.objective)


def promises(settings: SloSettings) -> tuple[Promise, ...]:
    """Return what the configuration promises."""
    return (
        Promise("availability", settings.availability),
        Promise("ttft", settings.ttft_share, settings.ttft_ms / 1e3),
        Promise("tpot", settings.tpot_share, settings.tpot_ms / 1e3),
    )


def state_of(
    rates: Mapping[Window, float | None],
    counts: Mapping[Window, Counts],
    month: Counts,
    budget_left: float | None,
) -> State:
    """Return how a promise stands. A page outranks a broken promise: something happens now.

    A budget that a few bad requests among few have used up says nothing yet: `unknown`.
    """
    if budget_left is None:
        return "unknown"

    def burns(rules: Rules) -> bool:
        return any(
            min(rates[long] or 0.0, rates[short] or 0.0) > rate and counts[long].bad >= MIN_BAD
            for long, short, rate in rules
        )

    if burns(PAGES):
        return "paging"
    if budget_left < 0:
        return "broken" if month.bad >= MIN_BAD else "unknown"
    return "burning" if burns(TICKETS) else "ok"


class SloBook:
    """The books of all promises.

    Args:
        settings: What is promised.
        clock: Of the hub; its Unix time names the minutes.
        path: Where minutes are kept; None: in memory alone.
    """

    def __init__(self, settings: SloSettings, clock: WallClock, path: Path | None = None) -> None:
        self._promises = promises(settings)
        self._clock = clock
        self._minutes = {name: Minutes() for name in SLOS}
        self._seen = {name: Counts(0, 0) for name in SLOS}
        """Cumulative counts as they were last time."""
        self._states: dict[SloName, State] = dict.fromkeys(SLOS, "unknown")
        self._minute = 0
        self._changed: set[int] = set()
        self._saved_ns: int | None = None
        self._db = SloDb(path) if path is not None else None

    def open(self, at_ns: int) -> None:
        """Read what is stored; at the start, before anything is observed."""
        self._minute = self._clock.unix_ns(at_ns) // MINUTE_NS
        for row in self._db.load() if self._db is not None else ():
            if row.minute <= self._minute + FUTURE_MINUTES:
                self._take(row._replace(minute=min(row.minute, self._minute)))

    def observe(self, events: Mapping[Labels, float], at_ns: int) -> None:
        """Take the cumulative counts of `SLO_EVENTS` by (slo, outcome); they never fall."""
        self._minute = max(self._minute, self._clock.unix_ns(at_ns) // MINUTE_NS)
        for name in SLOS:
            now = Counts(*(round(events.get((name, how), 0)) for how in ("good", "bad")))
            before, self._seen[name] = self._seen[name], now
            good, bad = max(0, now.good - before.good), max(0, now.bad - before.bad)
            if good or bad:
                self._minutes[name].add(self._minute, good, bad)
                self._changed.add(self._minute)
        self._save_now_and_then(at_ns)

    def rows(self) -> list[SloRow]:
        """Return how each promise is kept."""
        return [self._row(promise) for promise in self._promises]

    def take_changes(self) -> list[Change]:
        """Return how promises stand otherwise than at the last call."""
        changes: list[Change] = []
        for row in self.rows():
            before, self._states[row.name] = self._states[row.name], row.state
            if row.state != before and not DANGER.isdisjoint((row.state, before)):
                changes.append(Change(row.name, row.state, SEVERITY[row.state], _told(row)))
        return changes

    def levels(self) -> list[Level]:
        """Return the gauges; where nothing was judged nothing burns."""
        levels: list[Level] = []
        for promise in self._promises:
            label = (promise.name,)
            levels.append((names.SLO_OBJECTIVE, label, promise.objective))
            if promise.threshold_s is not None:
                levels.append((names.SLO_THRESHOLD, label, promise.threshold_s))
            left = self._budget_left(promise)
            levels.append((names.SLO_BUDGET, label, 1.0 if left is None else left))
            for window in WINDOWS:
                rate = promise.burn(self._last(promise.name, WINDOWS[window])) or 0.0
                levels.append((names.SLO_BURN, (promise.name, window), rate))
        return levels

    def close(self) -> None:
        """Write what is left."""
        if self._db is not None:
            self._save()
            self._db.close()

    def _row(self, promise: Promise) -> SloRow:
        windows: dict[Window, Counts] = {
            window: self._last(promise.name, minutes) for window, minutes in WINDOWS.items()
        }
        rates: dict[Window, float | None] = {
            window: promise.burn(counts) for window, counts in windows.items()
        }
        month, left = self._last(promise.name, BUDGET_MINUTES), self._budget_left(promise)
        ratio = month.bad_ratio
        threshold_s = promise.threshold_s
        return SloRow(
            name=promise.name,
            objective=promise.objective,
            threshold_ms=None if threshold_s is None else threshold_s * 1e3,
            good=month.good,
            bad=month.bad,
            ratio=None if ratio is None else 1 - ratio,
            budget_left=left,
            burn=[BurnRate(window=window, rate=rate) for window, rate in rates.items()],
            state=state_of(rates, windows, month, left),
        )

    def _budget_left(self, promise: Promise) -> float | None:
        burned = promise.burn(self._last(promise.name, BUDGET_MINUTES))
        return None if burned is None else 1 - burned

    def _last(self, name: SloName, window: int) -> Counts:
        return self._minutes[name].last(self._minute, window)

    # ------------------------------------------------------ on disk

    def _take(self, row: MinuteRow) -> None:
        counts = row[1:]
        for number, name in enumerate(SLOS):
            self._minutes[name].add(row.minute, counts[2 * number], counts[2 * number + 1])

    def _save_now_and_then(self, at_ns: int) -> None:
        if self._saved_ns is None or at_ns - self._saved_ns >= SAVE_NS:
            self._saved_ns = at_ns
            self._save()

    def _save(self) -> None:
        if self._db is not None and self._changed:
            rows = [self._stored(minute) for minute in sorted(self._changed)]
            self._changed.clear()
            self._db.save(rows, self._minute - BUDGET_MINUTES)

    def _stored(self, minute: int) -> MinuteRow:
        counts = [self._minutes[name].of(minute) for name in SLOS]
        return MinuteRow(minute, *(count for pair in counts for count in pair))


def _told(row: SloRow) -> str:
    rates = {burn.window: burn.rate or 0.0 for burn in row.burn}
    left = row.budget_left
    if left is None:
        budget = "nothing was judged in 30 days"
    elif left >= 0:
        budget = f"{left:.0%} of the error budget of 30 days is left"
    else:
        budget = f"{-left:.0%} over the error budget of 30 days"
    return (
        f"{row.state}: {budget}; it burns {rates['5m']:.1f}x over 5 minutes,"
        f" {rates['1h']:.1f}x over an hour, {rates['6h']:.1f}x over 6 hours"
    )
