"""Windows forget, rates fall to zero, and the headline says what they mean."""

import msgspec
import pytest

from appliance.telemetry.headline import headline
from appliance.telemetry.recent import STALE_NS, WINDOW_NS, Recent
from appliance.telemetry.records import Outcome
from appliance.telemetry.wall_clock import WallClock
from appliance.telemetry.windows import Rate, Window
from tests.appliance.telemetry.workload import MS, choice, record, rejected, timeline

S = 1_000_000_000


def test_percentiles_are_of_the_values_in_the_window():
    window = Window(60 * S)
    for value in range(1, 101):
        window.add(0, value)
    assert window.percentiles(0).p50 == 51
    assert window.percentiles(0).p99 == 99

    window.add(90 * S, 7)
    assert window.percentiles(90 * S).p50 == window.percentiles(90 * S).p99 == 7
    assert window.percentiles(200 * S).p50 is None


def test_requests_per_second_are_right_when_there_are_more_than_a_window_holds():
    recent = Recent(WallClock(0), 0)
    for number in range(15_000):  # 500 a second
        recent.record(rejected(ended_ns=number * 2 * MS))

    assert recent.requests_per_s(30 * S) == pytest.approx(500, rel=0.01)
    assert recent.requests_per_s(30 * S + WINDOW_NS + MS) == 0


def test_a_few_requests_are_spread_over_the_window_or_the_time_since_the_start():
    recent = Recent(WallClock(0), 0)
    for second in range(10):
        recent.record(rejected(ended_ns=second * S))

    assert recent.requests_per_s(10 * S) == 1
    assert recent.requests_per_s(59 * S) == pytest.approx(10 / 59, abs=0.001)


def test_a_rate_is_the_growth_over_the_window_and_falls_when_counting_stops():
    rate = Rate(10 * S)
    assert rate.per_s(0) == 0
    for second in range(21):
        rate.set(second * S, 5 * second)

    assert rate.per_s(20 * S) == pytest.approx(5)
    assert rate.per_s(25 * S) == pytest.approx(5 * 5 / 10)
    assert rate.per_s(60 * S) == 0


def test_the_headline_names_the_largest_share_and_compares_with_the_median():
    times = timeline(
        1004 * MS,
        scheduled_ns=1254 * MS,
        first_token_ns=1400 * MS,
        last_token_ns=1500 * MS,
        finished_ns=1500 * MS,
    )
    slow = record(
        choices=(choice(0, times),),
        first_frame_ns=1412 * MS,
        last_token_ns=1501 * MS,
        ended_ns=1510 * MS,
    )

    assert headline(slow, 103.0) == "TTFT 412 ms: 61 % queued, 4x the recent median"
    assert headline(slow, 400.0) == "TTFT 412 ms: 61 % queued, near the recent median"
    assert headline(slow, None) == "TTFT 412 ms: 61 % queued"


def test_the_headline_says_how_a_request_ended():
    assert headline(rejected(), None) == "rejected with 401 invalid_api_key after 20 ms"
    aborted = record(outcome=Outcome.ABORTED)
    assert headline(aborted, None) == "aborted after 20 ms in decode, 5 tokens"
    failed = record(outcome=Outcome.FAILED, error_code="engine_restarted", choices=())
    failed = msgspec.structs.replace(failed, last_token_ns=None, held_ns=5 * MS)
    assert headline(failed, None) == "failed after 20 ms waiting for an engine: engine_restarted"


def test_the_median_of_many_requests_is_not_sorted_anew_for_each():
    recent = Recent(WallClock(), 0)
    for _ in range(1000):
        recent.ttft_ms.add(0, 10.0)
    assert recent.median_ttft_ms(0) == 10.0
    for _ in range(2000):
        recent.ttft_ms.add(1, 90.0)

    assert recent.median_ttft_ms(1) == 10.0
    assert recent.median_ttft_ms(3000 * STALE_NS + 1) == 90.0
