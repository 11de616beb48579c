import pytest

from dashboard.client.sse import (
    MAX_EVENT_CHARS,
    Backoff,
    EventParser,
    EventTooLargeError,
    ServerEvent,
)
from dashboard.source.frames import Alive, Gap
from dashboard.source.live import frames_of
from tests.dashboard.samples import an_engine, stats


def events_of(text, parser=None):
    parser = parser or EventParser()
    return [event for line in text.split("\n") for event in parser.feed(line)]


def test_an_event_ends_with_an_empty_line():
    assert events_of("id: 7\nevent: engine\ndata: {}\n\n") == [ServerEvent("engine", "{}", "7")]


def test_several_data_lines_are_joined():
    assert events_of("event: x\ndata: a\ndata: b\n\n") == [ServerEvent("x", "a\nb")]


def test_only_one_blank_after_the_colon_is_dropped():
    assert events_of("data:  two\n\n")[0].data == " two"
    assert events_of("data:none\n\n")[0].data == "none"


def test_a_comment_is_only_a_sign_of_life():
    assert events_of(": ping") == [ServerEvent("", "ping")]


def test_the_last_id_is_that_of_the_last_complete_event():
    parser = EventParser()
    events_of("id: 7\ndata: a\n\nid: 8\ndata: b", parser)

    assert parser.last_id == "7"


def test_an_event_without_data_is_none_but_its_id_counts():
    parser = EventParser()

    assert events_of("id: 9\nevent: engine\n\n", parser) == []
    assert parser.last_id == "9"


def test_retry_is_read_as_milliseconds():
    parser = EventParser()
    events_of("retry: 1500\n\n", parser)

    assert parser.retry_s == 1.5


def test_an_endless_event_is_refused():
    parser = EventParser()

    with pytest.raises(EventTooLargeError):
        events_of("data: " + "x" * (MAX_EVENT_CHARS + 1), parser)


def test_waits_double_up_to_the_longest_and_start_over():
    backoff = Backoff(first_s=1.0, most_s=5.0, uniform=lambda _low, high: high)

    assert [backoff.next_s() for _ in range(5)] == [1.0, 2.0, 4.0, 5.0, 5.0]
    backoff.reset()
    assert backoff.next_s() == 1.0


def test_waits_are_spread_over_their_upper_half():
    backoff = Backoff(first_s=2.0, uniform=lambda low, high: (low + high) / 2)

    assert backoff.next_s() == 1.5


def test_events_become_rows():
    engine, numbers = an_engine(), stats()

    assert list(frames_of(ServerEvent("engine", engine.model_dump_json()))) == [engine]
    assert list(frames_of(ServerEvent("engine", f"[{engine.model_dump_json()}]"))) == [engine]
    assert list(frames_of(ServerEvent("stats", numbers.model_dump_json()))) == [numbers]


def test_a_kind_of_a_newer_server_is_only_a_sign_of_life():
    assert list(frames_of(ServerEvent("weather", "{}"))) == [Alive()]


def test_an_event_that_does_not_fit_its_schema_is_a_gap():
    assert list(frames_of(ServerEvent("engine", '{"id": 1}'))) == [Gap()]
    assert list(frames_of(ServerEvent("gap", '{"missed": 3}'))) == [Gap()]
