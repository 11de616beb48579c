from datetime import timedelta
from typing import Any

from dashboard.source.frames import Alive, Gap, History, Link
from dashboard.store.history import KEEP, Trends, push
from dashboard.store.state import KEEP_ENDED, STALE_AFTER_S, State, reduce
from tests.dashboard.samples import (
    AT,
    a_request,
    a_snapshot,
    an_engine,
    an_event,
    an_operation,
    stats,
)


def after(*frames: Any, at_s=10.0, state=None):
    state = state or State()
    for frame in frames:
        state = reduce(state, frame, at_s)
    return state


def test_a_snapshot_replaces_what_is_live_and_keeps_what_ended():
    ended, live, other = (
        a_request("req-a", state="finished"),
        a_request("req-b"),
        a_request("req-c"),
    )
    state = after(a_snapshot(requests=[ended, live]), a_snapshot(requests=[other]))

    assert set(state.requests) == {"req-a", "req-c"}
    assert state.connected


def test_a_delta_changes_one_row():
    state = after(a_snapshot(engines=[an_engine("e0"), an_engine("e1")]))
    changed = after(an_engine("e1", state="asleep"), state=state)

    assert [row.state for row in changed.engines.values()] == ["ready", "asleep"]
    assert state.engines["e1"].state == "ready", "the reducer changes nothing in place"


def test_what_ended_stays_ended_whatever_comes_late():
    state = after(a_request(state="finished"), a_request(state="decode"))

    assert [row.state for row in state.ended()] == ["finished"]
    assert state.live() == []


def test_the_past_is_added_without_hiding_what_runs():
    state = after(a_request("req-b"), History((a_request("req-a", state="failed"),)))

    assert [row.id for row in state.live()] == ["req-b"]
    assert [row.id for row in state.ended()] == ["req-a"]


def test_ended_requests_are_bounded_newest_first():
    rows = [
        a_request(f"req-{at}", state="finished", received_at=AT + timedelta(seconds=at))
        for at in range(KEEP_ENDED + 50)
    ]
    state = after(*rows)

    assert len(state.requests) == KEEP_ENDED
    assert state.ended()[0].id == f"req-{KEEP_ENDED + 49}"


def test_stale_is_a_broken_line_or_long_silence():
    state = after(a_snapshot(), at_s=10.0)

    assert not state.is_stale(11.0)
    assert state.is_stale(10.5 + STALE_AFTER_S)
    assert after(Link(connected=False, reason="gone"), state=state).is_stale(10.5)
    assert not after(Alive(), at_s=40.0, state=state).is_stale(41.0)


def test_a_broken_line_keeps_the_data_and_says_why():
    state = after(a_snapshot(), Link(connected=False, reason="connection refused"))

    assert list(state.engines) == ["e0"]
    assert state.link_reason == "connection refused"


def test_the_servers_clock_runs_on_between_frames_and_stops_with_the_line():
    state = after(a_snapshot(stats=stats(at=AT)), at_s=10.0)
    assert state.server_now(13.0) == AT + timedelta(seconds=3)

    broken = after(Link(connected=False), at_s=12.0, state=state)
    assert broken.server_now(60.0) == AT


def test_the_most_memory_seen_is_remembered():
    state = after(an_engine(resident_bytes=500), an_engine(resident_bytes=100))

    assert state.peak_bytes == {"e0": 500}


def test_events_and_operations_are_kept_once_and_in_order():
    state = after(an_event(2), an_event(1), an_event(2), an_operation(), an_operation())

    assert [event.id for event in state.events] == [1, 2]
    assert list(state.operations) == ["op-1"]


def test_a_gap_is_counted():
    assert after(Gap(), Gap()).gaps == 2


def sample(trends, second, value):
    return push(trends, AT + timedelta(seconds=second), {"out": value})


def test_a_second_has_one_sample():
    trends = sample(sample(sample(Trends(), 0, 1.0), 0.5, 2.0), 1, 3.0)

    assert trends.of("out") == (2.0, 3.0)


def test_a_late_frame_is_bridged_and_an_outage_is_a_hole():
    assert sample(sample(Trends(), 0, 1.0), 2, 2.0).of("out") == (1.0, 1.0, 2.0)
    assert sample(sample(Trends(), 0, 1.0), 5, 2.0).of("out") == (1.0, None, None, None, None, 2.0)


def test_history_is_bounded_and_survives_a_clock_set_back():
    trends = Trends()
    for second in range(KEEP + 20):
        trends = sample(trends, second, float(second))
    assert len(trends.of("out")) == KEEP
    assert sample(trends, 100_000, 1.0).of("out")[-2] is None
    assert sample(trends, 3, 7.0).of("out") == (7.0,)


def test_a_series_that_stops_leaves_a_hole():
    trends = push(sample(Trends(), 0, 1.0), AT + timedelta(seconds=1), {"in": 5.0})

    assert trends.of("out") == (1.0, None)
    assert trends.of("in") == (5.0,)
