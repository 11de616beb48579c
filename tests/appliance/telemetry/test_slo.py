"""Promises: what is judged becomes minutes, minutes become burn rates, and a month is not lost."""

import sqlite3
from pathlib import Path

import pytest

from appliance.config.settings import SloSettings
from appliance.supervisor.admin.schemas import SloRow
from appliance.telemetry import names
from appliance.telemetry.slo import BUDGET_MINUTES, MINUTE_NS, TRIM, Minutes, SloBook
from appliance.telemetry.wall_clock import WallClock

SETTINGS = SloSettings(availability=0.99, ttft_ms=1500, ttft_share=0.9)
EPOCH = 30_000_000 * MINUTE_NS
"""A Unix time, in 2027."""


class Traffic:
    """Plays minutes of good and bad requests to a book, cumulative as the ledger counts them."""

    def __init__(self, path: Path | None = None, starts_at: int = 0) -> None:
        self.at_ns = starts_at * MINUTE_NS
        self.events: dict[tuple[str, ...], float] = {}
        self.book = SloBook(SETTINGS, WallClock(EPOCH), path)
        self.book.open(self.at_ns)

    def play(self, minutes: int, good: int = 0, bad: int = 0, slo: str = "availability") -> None:
        for _ in range(minutes):
            for outcome, count in (("good", good), ("bad", bad)):
                self.events[slo, outcome] = self.events.get((slo, outcome), 0) + count
            self.book.observe(self.events, self.at_ns)
            self.at_ns += MINUTE_NS
        self.book.observe(self.events, self.at_ns - MINUTE_NS)

    def row(self, slo: str = "availability") -> SloRow:
        return next(row for row in self.book.rows() if row.name == slo)

    def burn(self, window: str, slo: str = "availability") -> float | None:
        return next(burn.rate for burn in self.row(slo).burn if burn.window == window)


def test_nothing_judged_is_unknown_and_burns_nothing():
    traffic = Traffic()
    traffic.book.observe({}, 0)

    row = traffic.row()

    assert (row.state, row.ratio, row.budget_left, row.good, row.bad) == (
        "unknown",
        None,
        None,
        0,
        0,
    )
    assert {burn.rate for burn in row.burn} == {None}
    levels = {(metric.name, labels): value for metric, labels, value in traffic.book.levels()}
    assert levels[names.SLO_BURN.name, ("availability", "5m")] == 0
    assert levels[names.SLO_BUDGET.name, ("availability",)] == 1
    assert levels[names.SLO_OBJECTIVE.name, ("ttft",)] == 0.9
    assert levels[names.SLO_THRESHOLD.name, ("ttft",)] == 1.5
    assert (names.SLO_THRESHOLD.name, ("availability",)) not in levels


def test_one_bad_request_of_a_few_breaks_no_promise_yet():
    traffic = Traffic()
    traffic.play(1, good=43, bad=1)
    row = traffic.row()
    assert row.budget_left is not None
    assert row.budget_left < 0
    assert row.state == "unknown"

    traffic.play(1, bad=4)

    assert traffic.row().state in ("broken", "paging")


def test_a_burn_rate_of_one_uses_the_budget_up_in_its_window():
    traffic = Traffic()
    traffic.play(10, good=99, bad=1)

    assert traffic.burn("5m") == pytest.approx(1)
    assert traffic.row().budget_left == pytest.approx(0)
    assert traffic.row().ratio == pytest.approx(0.99)
    assert traffic.row().state == "ok"


def test_a_fast_burn_pages_and_stops_when_the_short_window_is_clean():
    traffic = Traffic()
    traffic.play(3000, good=100)
    assert traffic.row().state == "ok"

    traffic.play(12, good=20, bad=80)
    assert traffic.burn("1h") > 14.4
    assert traffic.burn("5m") == pytest.approx(80)
    assert traffic.row().state == "paging"

    traffic.play(5, good=100)
    assert traffic.burn("1h") > 6
    assert traffic.burn("5m") == 0
    assert traffic.row().state != "paging"


def test_a_slow_burn_is_a_ticket():
    traffic = Traffic()
    traffic.play(20_000, good=100)
    traffic.play(1500, good=96, bad=4)

    assert traffic.burn("1d") == pytest.approx(4)
    assert traffic.burn("2h") == pytest.approx(4)
    assert traffic.row().state == "burning"


def test_the_six_hour_window_pages_below_the_fast_rate():
    traffic = Traffic()
    traffic.play(20_000, good=100)
    traffic.play(360, good=93, bad=7)

    assert 6 < (traffic.burn("6h") or 0) < 14.4
    assert traffic.row().state == "paging"


def test_a_budget_that_is_gone_is_a_broken_promise():
    traffic = Traffic()
    traffic.play(100, good=50, bad=50)
    traffic.play(5000, good=10)

    row = traffic.row()

    assert row.budget_left is not None
    assert row.budget_left < 0
    assert row.state == "broken"


def test_four_bad_requests_among_few_call_nobody_and_the_fifth_does_as_in_the_alert_rules():
    traffic = Traffic()
    traffic.play(5000, good=10)
    traffic.play(60)
    traffic.play(2, bad=2)

    assert traffic.burn("1h") == pytest.approx(100)
    assert traffic.row().state == "ok"
    traffic.play(1, bad=1)
    assert traffic.row().state == "paging"


def test_promises_are_apart():
    traffic = Traffic()
    traffic.play(10, good=10)
    traffic.play(10, good=1, bad=9, slo="ttft")

    assert traffic.row("availability").state == "ok"
    assert traffic.row("ttft").state == "paging"
    assert traffic.row("ttft").threshold_ms == 1500
    assert traffic.row("tpot").state == "unknown"


def test_a_change_is_told_once_and_so_is_the_return():
    traffic = Traffic()
    traffic.play(3000, good=100)
    assert traffic.book.take_changes() == []
    traffic.play(12, good=20, bad=80)

    (change,) = traffic.book.take_changes()
    assert (change.name, change.state, change.level) == ("availability", "paging", "error")
    assert "80.0x over 5 minutes" in change.text
    assert traffic.book.take_changes() == []

    traffic.play(20_000, good=1000)
    (change,) = traffic.book.take_changes()
    assert (change.state, change.level) == ("ok", "info")


def test_the_month_survives_a_restart_and_the_minute_goes_on(tmp_path: Path):
    path = tmp_path / "slo.db"
    first = Traffic(path)
    first.play(100, good=9, bad=1)
    first.book.close()
    assert path.stat().st_mode & 0o777 == 0o600

    second = Traffic(path, starts_at=99)
    second.play(1, good=5)
    second.play(10, good=9, bad=1)

    row = second.row()
    assert (row.good, row.bad) == (900 + 5 + 90, 110)
    second.book.close()
    third = Traffic(path, starts_at=120)
    assert (third.row().good, third.row().bad) == (995, 110)
    third.book.close()


def test_a_gap_without_traffic_ages_what_was_before():
    traffic = Traffic()
    traffic.play(10, bad=10)
    traffic.at_ns += 4 * 1440 * MINUTE_NS
    traffic.play(1, good=1)

    assert traffic.burn("3d") == 0
    assert traffic.row().bad == 100, "the month remembers"
    traffic.at_ns += BUDGET_MINUTES * MINUTE_NS
    traffic.play(1, good=1)
    assert (traffic.row().good, traffic.row().bad) == (1, 0)


def test_a_clock_that_was_set_back_loses_nothing_and_one_that_was_wrong_counts_nothing(
    tmp_path: Path,
):
    path = tmp_path / "slo.db"
    first = Traffic(path, starts_at=1000)
    first.play(5, good=10)
    first.play(1, bad=2)
    first.book.close()

    a_little = Traffic(path, starts_at=998)
    assert (a_little.row().good, a_little.row().bad) == (50, 2)
    a_little.play(1, good=1)
    assert a_little.row().good == 51
    a_little.book.close()

    far = Traffic(path, starts_at=10)
    assert far.row().state == "unknown", "minutes of a wrong clock are left out"
    far.book.close()


def test_the_clock_stepping_back_while_it_runs_keeps_counting():
    traffic = Traffic(starts_at=500)
    traffic.play(5, good=10)
    traffic.at_ns -= 60 * MINUTE_NS
    traffic.play(5, good=10)

    assert traffic.row().good == 100


def test_a_damaged_file_is_put_aside_and_a_missing_directory_costs_only_history(tmp_path: Path):
    path = tmp_path / "slo.db"
    path.write_bytes(b"this is no database" * 100)
    damaged = Traffic(path)
    damaged.play(1, good=1)
    assert damaged.row().good == 1
    damaged.book.close()
    assert (tmp_path / "slo.damaged").exists()
    assert Traffic(path).row().good == 1

    nowhere = Traffic(tmp_path / "missing" / "slo.db")
    nowhere.play(1, good=1)
    assert nowhere.row().good == 1
    nowhere.book.close()


def test_the_file_holds_no_more_than_its_month(tmp_path: Path):
    path = tmp_path / "slo.db"
    traffic = Traffic(path)
    traffic.play(3, good=1)
    traffic.at_ns += (BUDGET_MINUTES + 10) * MINUTE_NS
    traffic.play(2, good=1)
    traffic.book.close()

    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT count(*) FROM minutes").fetchone() == (2,)
    connection.close()


def test_running_sums_stay_right_when_old_minutes_are_cut_off():
    minutes = Minutes()
    for minute in range(BUDGET_MINUTES + 2 * TRIM + 5):
        minutes.add(minute, 2, 1)

    last = BUDGET_MINUTES + 2 * TRIM + 4
    assert minutes.last(last, BUDGET_MINUTES) == (2 * BUDGET_MINUTES, BUDGET_MINUTES)
    assert minutes.last(last, 5) == (10, 5)
    assert minutes.of(last - 3) == (2, 1)
