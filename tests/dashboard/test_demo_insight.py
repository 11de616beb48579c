"""The invented instance explains itself as a real one does."""

import asyncio
from datetime import timedelta
from itertools import pairwise

import pytest
from textual.widgets import Input

from appliance.supervisor.admin.schemas import ChangeTelemetry, SleepBody, StartProfileBody, Stats
from dashboard.client.insight import LogQuery
from dashboard.client.problems import ApiProblem
from dashboard.source.demo import DemoSource
from dashboard.source.demo_fleet import START
from dashboard.source.demo_trace import demo_trace
from tests.dashboard.terminal import an_app, screen_lines, until, until_shown

pytestmark = pytest.mark.anyio

SMALL, LARGE = (80, 24), (160, 45)


async def quick() -> None:
    await asyncio.sleep(0.1)


async def at_once() -> None:
    await asyncio.sleep(0)


async def never() -> None:
    await asyncio.Event().wait()


@pytest.fixture
async def lived():
    """A demo that went through its incident."""
    source = DemoSource(at_once, warm_up=140)
    async for frame in source.frames():
        if isinstance(frame, Stats) and frame.at > START + timedelta(seconds=71):
            return source
    raise AssertionError


async def test_every_request_is_explained_by_spans_of_its_trace(lived):
    ended = lived._fleet.ended
    kinds = set()
    for row in ended:
        explanation = await lived.insight.explanation(row.id)
        known = {span.span_id for span in demo_trace(row).spans}
        assert set(explanation.critical_path) <= known
        assert sum(cause.share for cause in explanation.causes) <= 1.0001
        for cause in explanation.causes:
            assert {fact.span_id for fact in cause.evidence if fact.span_id} <= known
            kinds.add(cause.kind)

    assert {"long_prompt", "long_output"} <= kinds


async def test_the_incident_is_in_the_moment_the_log_the_promises_and_the_events(lived):
    moment = await lived.insight.moment(START + timedelta(seconds=45), 60.0)
    assert any("signal 9" in sentence for sentence in moment.summary)
    assert moment.by_outcome["failed"] > 0
    errors = await lived.insight.logs(LogQuery(min_level="error"))
    assert any("signal 9" in row.text for row in errors)
    assert {row.level for row in errors} == {"error"}
    assert any(event.kind == "engine.died" for event in await lived.insight.journal(100))
    availability = lived._fleet.stats().slos[0]
    assert availability.state in ("burning", "paging")


async def test_nothing_is_known_of_times_before_the_demo(lived):
    moment = await lived.insight.moment(START - timedelta(days=1), 60.0)

    assert moment.requests == 0
    assert moment.slowest == []


async def test_the_audit_log_is_a_chain(lived):
    await lived.sleep("e0", SleepBody())
    newest_first = await lived.insight.audit(100)

    assert newest_first[0].route.endswith("/sleep")
    for later, earlier in pairwise(newest_first):
        assert later.previous == earlier.hash
    assert (await lived.insight.audit_check()).entries == len(newest_first)


async def test_a_change_of_the_telemetry_holds(lived):
    await lived.insight.change_telemetry(ChangeTelemetry(recording=False, trace_ratio=1.0))
    settings = await lived.insight.telemetry()

    assert not settings.recording
    assert settings.trace_ratio == 1.0
    assert settings.export


async def test_what_cannot_be_is_refused(lived):
    for call in (
        lived.insight.explanation("req-none"),
        lived.insight.stacks("e9"),
        lived.insight.flight("e9", 5),
        lived.insight.start_profile(StartProfileBody(engine="e2")),
    ):
        with pytest.raises(ApiProblem):
            await call


async def test_the_flight_recorder_ends_with_the_engines_step(lived):
    report = await lived.insight.flight("e0", 20)

    assert report.steps[0].step == lived._fleet.engines["e0"].steps
    assert len(report.steps) == 20


async def test_a_profile_of_the_demo_is_ordered_followed_and_listed():
    async with an_app(DemoSource(quick)).run_test(size=SMALL) as pilot:
        await until_shown(pilot, "DECODE")
        await pilot.press("f")
        await until_shown(pilot, "Profile engine e0")
        pilot.app.screen.query_one(Input).value = "80"
        await pilot.press("shift+tab", "enter", "7")
        await until_shown(pilot, "◑ running", "recording")
        await until_shown(pilot, "✓ profiled e0: steps", "✓ done")
        await pilot.press("tab", "enter")
        await until_shown(pilot, "quarterdeck profile get prof-1")


@pytest.mark.parametrize("size", [SMALL, LARGE])
async def test_why_is_two_keys_away_in_the_demo(size):
    async with an_app(DemoSource(never), lambda: 100.0).run_test(size=size) as pilot:
        await until_shown(pilot, "DECODE", "SLO ✓ ok")
        await pilot.press("end", "3", "end", "enter")
        await until_shown(pilot, "against 212 requests", "phase", "median", "┃")


async def test_every_screen_can_be_drawn_at_any_size():
    async with an_app(DemoSource(never), lambda: 100.0).run_test(size=SMALL) as pilot:
        await until_shown(pilot, "DECODE")
        for key in ("2", "6", "7", "y"):
            await pilot.press(key)
            for size in ((20, 5), (121, 20), (60, 60), SMALL):
                await pilot.resize_terminal(*size)
                await until(pilot, lambda size=size: len(screen_lines(pilot.app)) == size[1])
