"""`explain`: a request, the slowest one, a point in time."""

from datetime import UTC, datetime, timedelta

import pytest

from appliance.supervisor.admin.insight_schemas import (
    Cause,
    Evidence,
    Explanation,
    PhaseAgainstCohort,
)
from appliance.supervisor.admin.ports import NotFoundError, TraceQuery
from appliance.supervisor.admin.schemas import TraceRow
from tests.appliance.cli.conftest import Appliance, Run
from tests.appliance.supervisor.admin.in_memory import REQUEST_ID

FOUND = Explanation(
    request_id=REQUEST_ID,
    verdict="1.9 s slower than usual: waited 2.1 s in the queue.",
    causes=[
        Cause(
            kind="queue",
            text="waited 2.1 s in the queue, 11x the median of this hour",
            cost_ms=1900.0,
            share=0.93,
            confidence="sure",
            advice="Raise --max-num-seqs.",
            evidence=[
                Evidence(text="time in the queue", value=2100.0, unit="ms", cohort_median=190.0),
                Evidence(text="8 requests waited at once", value=8, unit="requests"),
            ],
        )
    ],
    phases=[
        PhaseAgainstCohort(phase="queue", ms=2100.0, median_ms=190.0, p95_ms=400.0, ratio=11.05),
        PhaseAgainstCohort(phase="decode", ms=80.0),
    ],
    cohort="212 requests of tiny in the last hour",
    cohort_size=212,
    duration_ms=2200.0,
    excess_ms=1900.0,
)

SLOWEST = TraceRow(
    request_id=REQUEST_ID,
    trace_id="4" * 32,
    name="POST /v1/chat/completions",
    outcome="finished",
    model="tiny",
    received_at=datetime(2026, 5, 4, tzinfo=UTC),
    duration_ms=2200.0,
    ttft_ms=2100.0,
)


@pytest.fixture
def explained(appliance: Appliance, monkeypatch: pytest.MonkeyPatch) -> Appliance:
    async def explanation(request_id: str) -> Explanation:
        if request_id != REQUEST_ID:
            raise NotFoundError(f"no trace of request {request_id}")
        return FOUND

    monkeypatch.setattr(appliance.hub, "explanation", explanation)
    return appliance


def test_a_request_is_explained_with_evidence_advice_and_phases(run: Run, explained: Appliance):
    result = run("explain", REQUEST_ID)

    assert result.code == 0
    lines = result.out.splitlines()
    assert lines[0] == FOUND.verdict
    assert "queue: 1.90 s, 93 % of the excess, sure" in lines
    assert "  - time in the queue: 2.10 s (usually 190 ms)" in lines
    assert "  - 8 requests waited at once" in lines
    assert "  > Raise --max-num-seqs." in lines
    assert any(line.startswith("queue ") and line.endswith("11.1x") for line in lines)
    assert "212 requests of tiny" in result.err


def test_json_is_the_explanation_as_the_api_gives_it(run: Run, explained: Appliance):
    result = run("explain", REQUEST_ID, "-o", "json")

    assert Explanation.model_validate(result.json) == FOUND


def test_the_slowest_of_the_hour_is_found_by_its_trace(
    run: Run, explained: Appliance, monkeypatch: pytest.MonkeyPatch
):
    asked: list[TraceQuery] = []

    async def traces(query: TraceQuery) -> list[TraceRow]:
        asked.append(query)
        return [SLOWEST]

    monkeypatch.setattr(explained.hub, "traces", traces)

    result = run("explain", "--slowest", "-o", "json")

    assert result.json["request_id"] == REQUEST_ID
    (query,) = asked
    assert query.slowest_first
    assert query.since is not None
    assert datetime.now(UTC) - query.since < timedelta(minutes=61)


def test_without_requests_there_is_no_slowest(run: Run, appliance: Appliance):
    result = run("explain", "--slowest")

    assert result.code == 1
    assert "no request ended" in result.err


def test_one_that_is_not_there_is_waited_for_and_then_missed(
    run: Run, explained: Appliance, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("appliance.cli.explain_command._SETTLE_S", 0.2)

    result = run("explain", "req-" + "9" * 24)

    assert result.code == 1
    assert "no trace" in result.err


def test_a_time_is_asked_for_with_its_window(run: Run, appliance: Appliance):
    result = run("explain", "--at", "-5m", "--window", "30")

    assert result.code == 0
    assert "nothing happened" in result.out
    ((at, window_s),) = appliance.hub.moments
    assert window_s == 30
    assert abs(at - (datetime.now(UTC) - timedelta(minutes=5))) < timedelta(seconds=30)


@pytest.mark.parametrize(
    "arguments",
    [(), ("--slowest", "--at", "14:22"), (REQUEST_ID, "--slowest"), ("--at", "teatime")],
)
def test_what_cannot_be_meant_is_a_usage_error(run: Run, appliance: Appliance, arguments):
    assert run("explain", *arguments).code == 2
