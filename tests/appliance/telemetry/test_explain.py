"""Every cause is named when it is there, and not when it is not: near misses included."""

import time
from typing import Any

import pytest
from msgspec.structs import replace

from appliance.supervisor.admin.insight_schemas import Cause, Explanation
from appliance.telemetry.explain import explain
from appliance.telemetry.records import Outcome
from appliance.telemetry.spans import request_spans
from tests.appliance.telemetry.explain_stage import Step, Story, cohort, evidence
from tests.appliance.telemetry.workload import MS

CALM = cohort()


def first(story: Story, **changes: Any) -> Cause:
    explanation = explain(evidence(story, changes.pop("members", CALM), **changes))
    assert explanation.causes, explanation.verdict
    return explanation.causes[0]


def kinds(explanation: Explanation) -> list[str]:
    return [cause.kind for cause in explanation.causes]


def one_slow(at: int, ms: float):
    return lambda index: Step(ms if index == at else 5.0)


CAUSES = {
    "queue for a seat": ("queue", Story(queue=900, waited_for="seats")),
    "queue for blocks": ("queue", Story(queue=900, waited_for="kv_blocks")),
    "a burst of short prompts": (
        "queue",
        Story(
            queue=300,
            waited_for="budget",
            queue_steps=[Step(100, prompt_tokens=480, requests=24, prompts=20)] * 3,
        ),
    ),
    "a long prompt took the budget": (
        "long_prefill_beside",
        Story(
            queue=600, waited_for="budget", queue_steps=[Step(100, prompt_tokens=500)] * 6
        ),
    ),
    "preempted": ("preemption", Story(preempted=[(50, 400)], recomputed=110)),
    "preempted twice": ("preemption", Story(preempted=[(50, 200), (300, 300)], recomputed=230)),
    "a long prompt between its tokens": (
        "long_prefill_beside",
        Story(step=lambda i: Step(55, prompt_tokens=400) if 5 <= i < 15 else Step()),
    ),
    "a long prompt": ("long_prompt", Story(prompt=3000, cached=80, prefill=900)),
    "a long answer": ("long_output", Story(tokens=400)),
    "held while it woke": (
        "asleep_engine", Story(dispatch=1200, record={"held_ns": 1190 * MS, "held_for": "asleep"})
    ),
    "held while it woke already": (
        "asleep_engine", Story(dispatch=1200, record={"held_ns": 1190 * MS, "held_for": "waking"})
    ),
    "held while it started": (
        "engine_start", Story(dispatch=4000, record={"held_ns": 3990 * MS, "held_for": "starting"})
    ),
    "held for an adapter": (
        "adapter", Story(dispatch=700, record={"held_ns": 690 * MS, "held_for": "adapter"})
    ),
    "sent again": (
        "engine_died",
        Story(
            dispatch=3000, record={"held_ns": 2500 * MS, "held_for": "backoff", "requeues": 1}
        ),
    ),
    "sent again to another engine": ("engine_died", Story(dispatch=800, record={"requeues": 1})),
    "an adapter without a slot": ("adapter", Story(queue=500, waited_for="adapter")),
    "an adapter that is loaded, without a slot": (
        "adapter",
        Story(queue=500, prepared=0, waited_for="adapter"),
    ),
    "an adapter that is put into its slot": (
        "adapter", Story(queue=500, prepared=499, waited_for="adapter")
    ),
    "a grammar": ("grammar", Story(queue=500, prepared=499, waited_for="grammar")),
    "a client that does not read": (
        "slow_client",
        Story(stream=2000, record={"send_blocked_ns": 1990 * MS, "collected_ns": 1900 * MS}),
    ),
    "the gateway stood still": (
        "collector",
        Story(
            stream=600,
            record={"gateway_busy_ns": 580 * MS, "reply_transit_ns": 9000 * MS},
        ),
    ),
    "the gateway stood still before": (
        "collector", Story(front=600, record={"gateway_busy_ns": 640 * MS})
    ),
    "text took long": (
        "detokenizer",
        Story(stream=400, record={"detokenize_ns": 390 * MS, "gateway_busy_ns": 300 * MS}),
    ),
    "outputs were late": ("wire", Story(stream=500, record={"reply_transit_ns": 480 * MS})),
    "the message was late": ("wire", Story(dispatch=500)),
    "the tokenizer": ("tokenizer", Story(front=400)),
    "admission": (
        "admission",
        Story(front=404, record={"authenticated_ns": 10_400 * MS, "admitted_ns": 10_400 * MS}),
    ),
    "one step took long": ("slow_steps", Story(step=one_slow(9, 600))),
    "all steps took long": ("slow_steps", Story(step=lambda _: Step(11))),
    "the engine was in a long step when it came": (
        "slow_steps", Story(dispatch=500, dispatch_steps=[Step(500)])
    ),
    "the engine computed a prompt when it came": (
        "long_prefill_beside", Story(dispatch=250, dispatch_steps=[Step(250, prompt_tokens=2000)])
    ),
    "a crowd": ("crowded_batch", Story(batch=16, step=lambda _: Step(15, requests=16))),
}  # fmt: skip


@pytest.mark.parametrize("name", CAUSES)
def test_the_cause_is_named_first_and_for_most_of_the_excess(name: str):
    kind, story = CAUSES[name]

    cause = first(story)

    assert cause.kind == kind
    assert cause.share > 0.6
    assert cause.confidence in ("sure", "likely")
    assert cause.evidence
    assert cause.text


@pytest.mark.parametrize("name", CAUSES)
def test_lost_records_leave_only_what_the_request_itself_tells(name: str):
    _, story = CAUSES[name]

    whole = explain(evidence(story, CALM)).causes[0]
    torn = explain(evidence(story, CALM, complete=False))

    assert torn.causes[0].confidence == ("likely" if whole.confidence == "sure" else "weak")
    assert not torn.complete


NEAR_MISSES = {
    "nothing happened": Story(),
    "a little longer in the queue than others": Story(queue=4, waited_for="seats"),
    "a prompt beside it that did not hold it up": Story(
        step=lambda i: Step(6, prompt_tokens=4) if i < 10 else Step()
    ),
    "preempted and back at once": Story(preempted=[(50, 5)]),
    "a client that paused while tokens were made": Story(
        record={"send_blocked_ns": 100 * MS}
    ),
    "the gateway paused while tokens were made": Story(record={"gateway_busy_ns": 100 * MS}),
    "a few tokens more": Story(tokens=46),
    "much text work that nobody waited for": Story(record={"detokenize_ns": 150 * MS}),
    "held for a moment": Story(dispatch=6, record={"held_ns": 5 * MS, "held_for": "asleep"}),
    "a large batch that was as fast": Story(batch=16, step=lambda _: Step(5.2, requests=16)),
    "a compiled grammar": Story(queue=0.5, prepared=0.0),
    "less work than others": Story(tokens=5, prompt=50, cached=40, prefill=5),
}  # fmt: skip


@pytest.mark.parametrize("name", NEAR_MISSES)
def test_what_cost_nothing_is_not_blamed(name: str):
    explanation = explain(evidence(NEAR_MISSES[name], CALM))

    assert kinds(explanation) == []
    assert explanation.verdict.startswith("Not slow")


def test_two_causes_are_both_named_with_their_shares():
    story = Story(queue=600, waited_for="seats", stream=400, record={"send_blocked_ns": 395 * MS})

    explanation = explain(evidence(story, CALM))

    assert kinds(explanation) == ["queue", "slow_client"]
    queue, client = explanation.causes
    assert queue.share == pytest.approx(0.6, abs=0.02)
    assert client.share == pytest.approx(0.4, abs=0.02)
    assert "in the queue" in explanation.verdict
    assert "did not read" in explanation.verdict


def test_a_long_answer_hides_no_fault():
    story = Story(tokens=400, step=one_slow(9, 1500))

    explanation = explain(evidence(story, CALM))

    assert kinds(explanation) == ["long_output", "slow_steps"]
    assert explanation.causes[1].cost_ms == pytest.approx(1495, rel=0.1)


def test_a_short_answer_hides_no_fault():
    story = Story(tokens=2, queue=120, waited_for="seats")

    assert kinds(explain(evidence(story, CALM))) == ["queue"]


def test_what_most_of_a_crowd_costs_is_not_called_slow_steps():
    busy = cohort(size=40) + cohort(size=20, seed=2, batch=16, step=lambda _: Step(15, requests=16))
    story = Story(batch=16, step=lambda i: Step(700 if i == 3 else 15, requests=16))

    explanation = explain(evidence(story, busy))

    assert kinds(explanation) == ["slow_steps", "crowded_batch"]


def test_an_engine_that_starts_after_it_died_was_not_slow_to_start():
    record = {"held_ns": 3990 * MS, "held_for": "starting"}
    events = [(9_999 * MS, "engine.died", "e0", "died (epoch 1): signal 9")]

    cause = first(Story(dispatch=4000, record=record), events=events)

    assert cause.kind == "engine_died"


def test_unknown_where_the_steps_were_lost():
    cause = first(Story(step=one_slow(9, 600)), steps=[])

    assert cause.kind == "unknown"
    assert cause.confidence == "weak"


def test_unknown_where_the_engine_never_told():
    story = Story(queue=900, waited_for="seats", choice={"timeline": None})

    explanation = explain(evidence(story, CALM))

    assert explanation.causes[0].kind == "unknown"
    assert "not known why" in explanation.verdict


def test_unknown_where_an_answer_was_late_and_nobody_saw_why():
    assert first(Story(stream=800)).kind == "unknown"


def test_a_prompt_is_cold_where_others_find_theirs_cached():
    others = cohort(prompt=1000, cached=900, prefill=40)
    story = Story(prompt=1010, cached=0, prefill=400)

    explanation = explain(evidence(story, others))

    assert kinds(explanation) == ["cold_prefix"]
    assert "0 % cached, usually 90 %" in explanation.causes[0].text


def test_a_prompt_can_be_both_long_and_cold():
    others = cohort(size=30, prompt=1000, cached=900, prefill=40)
    others += cohort(size=12, seed=2, prompt=4000, cached=2000, prefill=800)
    story = Story(prompt=4000, cached=0, prefill=1600)

    assert kinds(explain(evidence(story, others))) == ["cold_prefix", "long_prompt"]


def test_too_few_others_are_no_measure_but_what_was_measured_counts():
    story = Story(queue=900, waited_for="seats")

    explanation = explain(evidence(story, CALM[:3]))

    assert kinds(explanation) == ["queue"]
    assert explanation.causes[0].confidence == "likely"
    assert "only 3 requests" in explanation.cohort
    assert explanation.phases[0].median_ms is None


def test_too_few_others_and_nothing_measured_is_said_to_be_no_more_than_shares():
    explanation = explain(evidence(Story(tokens=400), []))

    (cause,) = explanation.causes
    assert (cause.kind, cause.confidence) == ("long_output", "weak")
    assert "only 0 requests" in explanation.verdict


def test_too_few_others_do_not_hide_a_stop_of_the_engine():
    assert first(Story(step=one_slow(9, 900)), members=[]).kind == "slow_steps"


def test_an_hour_in_which_everybody_waits_makes_waiting_usual():
    waiting = cohort(queue=900, waited_for="seats")

    assert explain(evidence(Story(queue=950, waited_for="seats"), waiting)).causes == []


def test_a_prompt_is_cold_only_where_others_find_theirs_cached():
    nobody = cohort(cached=0, prefill=60)

    assert kinds(explain(evidence(Story(cached=0, prefill=60), nobody))) == []


def test_a_failure_comes_first_and_its_time_is_explained_too():
    story = Story(
        queue=900,
        waited_for="seats",
        record={"outcome": Outcome.FAILED, "status": 500, "error_code": "internal_error"},
    )

    explanation = explain(evidence(story, CALM))

    assert kinds(explanation) == ["failed", "queue"]
    assert "internal_error" in explanation.verdict


def test_an_engine_that_died_in_the_middle_is_the_failure():
    changes = {"outcome": Outcome.FAILED, "status": 503, "error_code": "engine_restarted"}

    explanation = explain(evidence(Story(record=changes), CALM))

    assert kinds(explanation)[0] == "engine_died"


def test_an_answer_that_broke_off_is_not_said_to_have_failed_with_200():
    changes = {"outcome": Outcome.FAILED, "status": 200, "error_code": "engine_restarted"}

    explanation = explain(evidence(Story(record=changes), CALM))

    assert explanation.verdict.startswith("Its answer broke off (engine_restarted) after ")
    assert "postmortem" in (explanation.causes[0].advice or "")


def test_a_refusal_says_what_it_was():
    changes = {
        "outcome": Outcome.REJECTED,
        "status": 429,
        "error_code": "rate_limit_exceeded",
        "admitted_ns": None,
        "tokenized_ns": None,
        "chat_span_id": None,
        "choices": (),
        "ended_ns": 10_003 * MS,
        "first_frame_ns": None,
        "last_token_ns": None,
    }

    explanation = explain(evidence(Story(record=changes), CALM))

    assert kinds(explanation) == ["failed"]
    assert "429 (rate_limit_exceeded)" in explanation.verdict


def test_one_that_gave_up_in_the_queue_is_told_what_it_waited_for():
    made = evidence(Story(queue=3000, waited_for="seats"), CALM)
    chosen = made.record.choices[0]
    times = chosen.timeline
    assert times is not None
    end_ns = times.received_ns + 2000 * MS
    times = replace(
        times, scheduled_ns=None, first_token_ns=None, last_token_ns=None, finished_ns=end_ns,
        first_step=None, last_step=None, chunks=(),
    )  # fmt: skip
    made = evidence(
        Story(queue=3000, waited_for="seats"),
        CALM,
        record={
            "outcome": Outcome.ABORTED,
            "choices": (replace(chosen, timeline=times),),
            "ended_ns": end_ns,
            "last_token_ns": None,
        },
        steps=[],
    )

    assert kinds(explain(made))[0] == "queue"


def test_several_choices_that_nobody_read_are_no_slow_decode():
    made = evidence(Story(), CALM)
    (one,) = made.record.choices
    late_ns = 900 * MS
    changes = {
        "choices": (one, replace(one, index=1, engine_request_id=f"{one.engine_request_id}-1")),
        "last_token_ns": made.record.ended_ns + late_ns,
        "ended_ns": made.record.ended_ns + late_ns + MS,
        "send_blocked_ns": late_ns,
    }

    explanation = explain(evidence(Story(), CALM, record=changes))

    assert kinds(explanation) == ["slow_client"]


def test_an_engine_that_stood_still_after_its_first_token_was_slow_there():
    """The pause lies at the end of the step that computed the prompt."""
    story = Story(prompt=1000, cached=0, prefill=100)
    made = evidence(story, cohort(prompt=1000, cached=0, prefill=100))
    (one,) = made.record.choices
    assert one.timeline is not None
    late_ns = 500 * MS
    first = made.steps[0]._replace(end_ns=made.steps[0].end_ns + late_ns)
    rest = [
        step._replace(start_ns=step.start_ns + late_ns, executed_ns=step.executed_ns + late_ns,
                      end_ns=step.end_ns + late_ns)
        for step in made.steps[1:]
    ]  # fmt: skip
    finished_ns = (one.timeline.finished_ns or 0) + late_ns
    times = replace(one.timeline, finished_ns=finished_ns, first_token_ns=first.executed_ns)
    record = {
        "choices": (replace(one, timeline=times),),
        "ended_ns": made.record.ended_ns + late_ns,
    }

    explanation = explain(evidence(story, made.cohort, steps=[first, *rest], record=record))

    assert kinds(explanation) == ["slow_steps"]


def test_a_quick_request_with_one_slow_phase_is_not_called_slow():
    story = Story(dispatch=60, step=lambda _: Step(3.0))

    assert kinds(explain(evidence(story, CALM))) == []


def test_the_evidence_names_the_span_in_which_the_cost_shows():
    made = evidence(Story(queue=900, waited_for="seats"), CALM)
    names = {span.span_id: span.name for span in request_spans(made.record).spans}

    explanation = explain(made)

    assert names[explanation.causes[0].evidence[0].span_id or ""] == "queue"
    assert [names[span_id] for span_id in explanation.critical_path] == [
        "POST /v1/chat/completions",
        "auth", "admission", "tokenize", "dispatch", "queue", "prefill", "decode", "stream",
    ]  # fmt: skip


def test_thousands_of_steps_are_read_at_once():
    made = evidence(Story(tokens=15_000), CALM * 16)

    start = time.monotonic()
    explain(made)

    assert time.monotonic() - start < 1.0
