"""Windows forget, rates fall to zero, and the headline says what they mean."""

import msgspec
import pytest

from appliance.telemetry.headline import headline
from appliance.telemetry.records import Outcome
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
