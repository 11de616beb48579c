"""The lag of a loop: what blocks it is seen, and by whom it was suffered can be asked."""

import asyncio
import time

import pytest

from appliance.telemetry.accounts import Histogram
from appliance.telemetry.loop_lag import MAX_LATE, LoopLag
from engine.clock import now_ns
from engine.wire.stats import LAG_EDGES

pytestmark = pytest.mark.anyio

MS = 1_000_000


async def test_a_blocked_loop_is_seen_and_an_idle_one_is_not():
    histogram = Histogram(LAG_EDGES)
    lag = LoopLag(histogram)
    lag.start()
    lag.start()
    await asyncio.sleep(0.18)
    quiet = sum(histogram.counts)
    assert 1 <= quiet <= 4, "one timer at a time"

    before_ns = now_ns()
    time.sleep(0.2)  # noqa: ASYNC251 - it shall block
    await asyncio.sleep(0.06)
    lag.stop()

    assert histogram.sum > 0.1
    assert 100 * MS < lag.since_ns(before_ns) < 300 * MS
    assert lag.since_ns(now_ns()) == 0
    ended = sum(histogram.counts)
    await asyncio.sleep(0.12)
    assert sum(histogram.counts) == ended


def test_the_sum_since_a_time_counts_what_came_after_it():
    lag = LoopLag()
    for number in range(5):
        lag.note(number * 100, 10 * MS)
    lag.note(999, 1)  # every timer is that late

    assert lag.since_ns(0) == 50 * MS
    assert lag.since_ns(1) == 40 * MS
    assert lag.since_ns(400) == 10 * MS
    assert lag.since_ns(401) == 0


def test_it_forgets_what_is_long_ago():
    lag = LoopLag()
    for number in range(5 * MAX_LATE):
        lag.note(number, 10 * MS)

    assert lag.since_ns(0) >= MAX_LATE * 10 * MS
    assert lag.since_ns(5 * MAX_LATE - 3) == 30 * MS
