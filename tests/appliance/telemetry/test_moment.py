"""A moment is told in sentences, the most telling first, and nothing is made up."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

from appliance.supervisor.admin.schemas import JournalEvent
from appliance.telemetry.cohort import cohort_member
from appliance.telemetry.evidence import MomentFacts, MomentRequest, StepFacts
from appliance.telemetry.moment import moment
from appliance.telemetry.records import Outcome
from tests.appliance.telemetry.explain_stage import Story, tell

S = 1_000_000_000
SINCE_NS = 1_800_000_000 * S
OFFSET_NS = 1_799_000_000 * S


def a_request(at_s: float = 10.0, story: Story | None = None, **changes: Any) -> MomentRequest:
    """One that arrived so many seconds into the window."""
    record, _ = tell(story or Story(record=changes))
    member = cohort_member(record, SINCE_NS + int(at_s * S) - record.received_ns)
    return MomentRequest(member, "tiny", "k1", "e0", "a headline")


def a_step(at_s: float = 10.0, took_ms: float = 5.0, **changes: Any) -> StepFacts:
    start_ns = SINCE_NS + int(at_s * S) - OFFSET_NS
    end_ns = start_ns + int(took_ms * 1e6)
    fields: dict[str, Any] = {
        "engine_id": "e0", "epoch": 1, "step": 7, "start_ns": start_ns, "scheduled_ns": start_ns,
        "built_ns": start_ns, "forwarded_ns": end_ns, "executed_ns": end_ns, "end_ns": end_ns,
        "prefill_tokens": 0, "decode_tokens": 2, "requests": 2, "used_blocks": 1, "preempted": 0,
        "waiting": 0, "rows": 2,
    }  # fmt: skip
    return StepFacts(**(fields | changes))


def an_event(kind: str, level: str, text: str, at_s: float = 12.0) -> JournalEvent:
    at = datetime.fromtimestamp(SINCE_NS / S + at_s, UTC)
    return JournalEvent(id=1, at=at, kind=kind, level=level, subject="e0", text=text)


def facts(
    requests: Sequence[MomentRequest] = (), steps: Sequence[StepFacts] = (), **changes: Any
) -> MomentFacts:
    fields: dict[str, Any] = {
        "since_unix_ns": SINCE_NS,
        "until_unix_ns": SINCE_NS + 60 * S,
        "offset_unix_ns": OFFSET_NS,
        "requests": requests,
        "steps": steps,
        "events": (),
        "hour_ttft_ms": (15.0,) * 20,
    }
    return MomentFacts(**(fields | changes))


def test_an_empty_time_is_said_to_be_empty():
    assert moment(facts()).summary == ["Nothing ran."]


def test_a_calm_time_is_said_to_be_calm_and_its_figures_are_there():
    calm = [a_request(second) for second in range(0, 60, 6)]

    found = moment(facts(calm, [a_step(second) for second in range(60)]))

    assert found.summary == ["Nothing unusual: 10 requests ran."]
    assert found.requests == 10
    assert found.by_outcome == {"finished": 10}
    assert found.ttft_p50_ms is not None
    assert found.hour_ttft_p50_ms == 15.0
    assert found.engines["e0"]["steps"] == 60
    assert found.engines["e0"]["mean_batch"] == 2
    assert found.engines["e0"]["busy_share"] == 0.005
    assert len(found.slowest) == 10


def test_an_engine_death_comes_before_all_else():
    events = [
        an_event("engine.ready", "info", "ready", 20.0),
        an_event("engine.died", "warning", "died (epoch 1): signal 9"),
    ]
    failed = a_request(outcome=Outcome.FAILED, status=503, error_code="engine_restarted")

    summary = moment(facts([failed], [a_step(waiting=9)], events=events)).summary

    assert "died (epoch 1): signal 9" in summary[0]
    assert summary[1].startswith("1 of 1 request failed")
    assert any("9 requests waited for a place on e0" in sentence for sentence in summary)
    assert any("ready" in sentence for sentence in summary)


def test_a_burst_stands_out_from_the_window():
    burst = [a_request(30.0) for _ in range(25)] + [a_request(s) for s in (3.0, 9.0)]

    summary = moment(facts(burst)).summary

    assert any("25 requests arrived within a second" in sentence for sentence in summary)


def test_a_steady_stream_is_no_burst():
    steady = [a_request(second / 10) for second in range(600)]

    assert not any("arrived" in sentence for sentence in moment(facts(steady)).summary)


def test_late_first_tokens_are_put_against_the_hour():
    late = [a_request(s, Story(queue=300, waited_for="seats")) for s in range(10)]

    summary = moment(facts(late)).summary

    assert any("x those of the hour before (15 ms)" in sentence for sentence in summary)


def test_preemptions_long_prompts_and_slow_steps_are_named():
    steps = [a_step(s) for s in range(20)]
    steps += [a_step(21, took_ms=900, step=99), a_step(22, preempted=2)]
    requests = [a_request(s) for s in range(5)] + [a_request(9, Story(prompt=5000, cached=0))]

    text = "\n".join(moment(facts(requests, steps)).summary)

    assert "e0 ran out of KV blocks: 2 preemptions" in text
    assert "step 99 of e0 took 900 ms, usually 5 ms" in text
    assert "had a prompt of 5,000 tokens to compute (e0)" in text


def test_many_warnings_are_told_in_short():
    events = [an_event("slo.burning", "warning", f"burning {k}") for k in range(9)]

    summary = moment(facts(events=events)).summary

    assert sum("burning" in sentence for sentence in summary) == 5
    assert any("4 more warnings" in sentence for sentence in summary)


def test_lost_records_are_admitted():
    assert "Records of this time were lost" in moment(facts(complete=False)).summary[-1]


def test_times_are_told_on_the_clock_of_the_one_who_asks():
    died = an_event("engine.died", "error", "died (epoch 1): SIGKILL")
    zone = timezone(timedelta(hours=5, minutes=30))

    told = moment(replace(facts(events=[died]), zone=zone)).summary

    assert told == [f"{died.at.astimezone(zone):%H:%M:%S} e0: died (epoch 1): SIGKILL."]


def test_a_death_is_told_once():
    died = an_event("engine.died", "warning", "died (epoch 1): SIGKILL")
    report = an_event("engine.postmortem", "warning", "epoch 1: SIGKILL; last step 605")

    assert len(moment(facts(events=[report, died])).summary) == 1
