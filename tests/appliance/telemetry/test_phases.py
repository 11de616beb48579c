"""The phases of a request tile it, whatever became of it."""

from itertools import pairwise

import msgspec
import pytest

from appliance.telemetry import names
from appliance.telemetry.phases import tile
from appliance.telemetry.records import Outcome, RequestRecord
from appliance.telemetry.spans import request_spans
from tests.appliance.telemetry.workload import MS, choice, record, rejected, timeline


def phases_of(of: RequestRecord) -> list[tuple[str, float, float]]:
    """Name, start and end in ms after the arrival, in time order."""
    spans = [s for s in request_spans(of).spans if names.PHASE in s.attributes]
    return [
        (s.name, (s.start_ns - of.received_ns) / MS, (s.end_ns - of.received_ns) / MS)
        for s in spans
    ]


def assert_tiles(of: RequestRecord) -> None:
    phases = phases_of(of)
    assert phases[0][1] == 0
    assert phases[-1][2] == (of.ended_ns - of.received_ns) / MS
    for (_, _, end), (_, start, _) in pairwise(phases):
        assert end == start


def test_a_finished_request_has_all_phases():
    of = record()

    assert phases_of(of) == [
        ("auth", 0, 1),
        ("admission", 1, 2),
        ("tokenize", 2, 3),
        ("dispatch", 3, 4),
        ("queue", 4, 6),
        ("prefill", 6, 9),
        ("decode", 9, 13),
        ("stream", 13, 20),
    ]


ENDINGS = {
    "aborted in the queue": record(
        outcome=Outcome.ABORTED,
        choices=(
            choice(
                0,
                timeline(
                    1004 * MS,
                    scheduled_ns=None,
                    first_token_ns=None,
                    last_token_ns=None,
                    finished_ns=1008 * MS,
                    chunks=(),
                ),
            ),
        ),
    ),
    "aborted in prefill": record(
        outcome=Outcome.ABORTED,
        choices=(choice(0, timeline(1004 * MS, first_token_ns=None, finished_ns=1008 * MS)),),
    ),
    "aborted in decode, nothing more from the engine": record(
        outcome=Outcome.ABORTED,
        last_token_ns=None,
        choices=(choice(0, timeline(1004 * MS, finished_ns=None)),),
    ),
    "failed with its engine before a word": record(
        outcome=Outcome.FAILED, last_token_ns=None, choices=(choice(0, None),)
    ),
    "failed while held": record(outcome=Outcome.FAILED, last_token_ns=None, choices=()),
    "rejected without a key": rejected(),
    "rejected by a limit": rejected(authenticated_ns=1001 * MS, status=429),
    "rejected as too long": rejected(
        authenticated_ns=1001 * MS, admitted_ns=1002 * MS, tokenized_ns=1003 * MS, status=400
    ),
    "without the stage of a server that asks for no key": record(authenticated_ns=None),
    "with stamps out of order": record(
        admitted_ns=1000 * MS,
        last_token_ns=1030 * MS,
        choices=(choice(0, timeline(1002 * MS, finished_ns=1025 * MS)),),
    ),
}


@pytest.mark.parametrize("of", ENDINGS.values(), ids=ENDINGS.keys())
def test_phases_tile_every_ending(of: RequestRecord):
    assert_tiles(of)


def test_the_phase_in_which_the_request_ended_is_the_last_of_the_engine():
    names_of = {why: [phase[0] for phase in phases_of(of)] for why, of in ENDINGS.items()}

    assert names_of["aborted in the queue"][3:] == ["dispatch", "queue", "stream"]
    assert names_of["aborted in prefill"][3:] == ["dispatch", "queue", "prefill", "stream"]
    assert names_of["failed with its engine before a word"][3:] == ["dispatch"]
    assert names_of["rejected without a key"] == ["auth"]
    assert names_of["rejected by a limit"] == ["auth", "admission"]


def test_each_of_several_choices_has_its_own_phases_that_tile_it():
    of = record(
        choices=(
            choice(0, timeline(1004 * MS)),
            choice(1, timeline(1004 * MS, finished_ns=1012 * MS)),
        )
    )
    spans = request_spans(of).spans

    for index, end_ms in ((0, 1013), (1, 1012)):
        whole = next(span for span in spans if span.name == f"choice {index}")
        assert whole.parent_id == of.chat_span_id
        own = [span for span in spans if span.parent_id == whole.span_id]
        assert [span.name for span in own] == ["dispatch", "queue", "prefill", "decode"]
        assert own[0].start_ns == whole.start_ns == of.tokenized_ns
        assert own[-1].end_ns == whole.end_ns == end_ms * MS
        for before, after in pairwise(own):
            assert before.end_ns == after.start_ns


def test_a_failed_request_has_the_error_where_it_ended():
    of = ENDINGS["failed with its engine before a word"]
    of = msgspec.structs.replace(of, error_code="engine_restarted")

    failed = [span.name for span in request_spans(of).spans if span.error == "engine_restarted"]

    assert failed == ["POST /v1/chat/completions", "chat tiny", "dispatch"]


def test_a_refused_request_is_no_error_of_the_server():
    assert request_spans(rejected()).spans[0].error is None


def test_a_prompt_that_took_several_steps_has_a_span_for_each():
    times = timeline(1004 * MS)
    chunk = times.chunks[0]
    times = msgspec.structs.replace(times, chunks=(chunk, chunk))

    spans = request_spans(record(choices=(choice(0, times),))).spans

    prefill = next(span for span in spans if span.name == "prefill")
    chunks = [span for span in spans if span.parent_id == prefill.span_id]
    assert [span.name for span in chunks] == ["prefill chunk", "prefill chunk"]
    assert all(names.PHASE not in span.attributes for span in chunks)


def test_tiling_stops_at_the_first_phase_without_an_end():
    assert tile(10, [("a", 15), ("b", None), ("c", 30)], 20) == [("a", 10, 15), ("b", 15, 20)]
