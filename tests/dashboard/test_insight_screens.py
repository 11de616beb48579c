"""The screens that explain, against a real HTTP server on a unix socket, at three sizes."""

import asyncio
import contextlib
from datetime import UTC, datetime

import pytest
from textual.widgets import Button, Input

from appliance.supervisor.admin.schemas import AuditCheck, Problem, WhoAmI
from dashboard.client.api import Endpoint
from dashboard.client.insight import LogQuery
from dashboard.client.sse import Backoff
from dashboard.screens.fleet import FleetScreen
from dashboard.screens.operations import OperationsScreen
from dashboard.screens.page import PageScreen
from dashboard.screens.telemetry import TelemetryScreen
from dashboard.screens.trace import TraceScreen
from dashboard.source.live import LiveSource
from dashboard.view.text import clock
from dashboard.widgets.choice import Choice
from dashboard.widgets.listing import Listing
from tests.dashboard.insight_samples import a_flight, a_line, an_explanation, an_slo
from tests.dashboard.samples import (
    AT,
    REQUEST_ID,
    a_request,
    a_snapshot,
    a_trace,
    an_engine,
    an_event,
    an_operation,
    stats,
)
from tests.dashboard.server import AdminFake, serving
from tests.dashboard.terminal import an_app, screen_lines, screen_text, until, until_shown

pytestmark = pytest.mark.anyio

SMALL, MIDDLE, LARGE = (80, 24), (120, 40), (160, 45)
SIZES = [SMALL, MIDDLE, LARGE]
OLD = Problem(title="t", status=404, code="no_such_route", detail="there is no such path")
EVIL = "\x1b]52;c;ZXZpbA==\x07\x1b[2J\u202e[@click=app.quit]x[/]"


@pytest.fixture
def fake(run_dir):
    admin = AdminFake(run_dir)
    ended = a_request(state="finished", age_s=0.1, ttft_ms=60.0, status=200)
    admin.snapshot = a_snapshot(requests=[ended], stats=stats(slos=[an_slo()]))
    return admin


@contextlib.asynccontextmanager
async def watching(fake, size=SMALL):
    source = LiveSource(Endpoint(socket_path=fake.socket_path), backoff=Backoff(0.02, 0.05))
    async with serving(fake), an_app(source).run_test(size=size) as pilot:
        await until_shown(pilot, "● READY 1/1", fake.whoami.scope)
        yield pilot


async def keys(pilot, *names: str) -> None:
    """Press one after another, each on the screen that the one before opened."""
    for name in names:
        await pilot.press(name)
        await until(pilot, lambda: pilot.app.screen.is_current)


async def at_every_size(pilot, *words: str) -> list[str]:
    """The screen at each size; all words are on each."""
    texts = []
    for size in SIZES:
        await pilot.resize_terminal(*size)
        await until(pilot, lambda: len(screen_lines(pilot.app)) == pilot.app.size[1])
        texts.append(await until_shown(pilot, *words))
    await pilot.resize_terminal(*SMALL)
    return texts


def listing(pilot, panel):
    return pilot.app.screen.query_one(f"#{panel}", Listing)


# why


async def test_two_keys_tell_why_a_request_was_slow(fake):
    async with watching(fake) as pilot:
        await keys(pilot, "3", "enter")
        why = ("Slow because it waited", "queue +36ms 80% sure", "why · 45ms beyond the median")
        small, middle, large = await at_every_size(pilot, *why, "critical path", "┃", "prefill")

        assert "+0.00 ms" not in small
        assert "+0.00 ms" in middle, "attributes beside it, where there is room"
        assert "+0.00 ms" in large


async def test_a_selected_cause_points_at_its_span(fake):
    async with watching(fake) as pilot:
        await keys(pilot, "3", "enter")
        await until_shown(pilot, "queue +36ms")
        await keys(pilot, "tab", "down")
        await until(pilot, lambda: listing(pilot, "waterfall").selected == "queue")
        text = await until_shown(pilot, "queue", "◂")
        assert sum("◂" in row for row in text.split("\n")) == 1

        await keys(pilot, "end")
        await until(pilot, lambda: listing(pilot, "waterfall").selected == "decode")
        await keys(pilot, "enter")
        await until(pilot, lambda: listing(pilot, "waterfall").has_focus)
        assert listing(pilot, "waterfall").selected == "decode"


async def test_e_shows_the_attributes_instead_and_the_causes_again(fake):
    async with watching(fake) as pilot:
        await keys(pilot, "3", "enter")
        await until_shown(pilot, "queue +36ms")
        await keys(pilot, "e")
        await until_shown(pilot, "takes", "gateway-0 (server)")
        assert "queue +36ms" not in screen_text(pilot.app)
        assert listing(pilot, "waterfall").has_focus
        await keys(pilot, "e")
        await until_shown(pilot, "queue +36ms")


async def test_a_trace_that_stays_incomplete_is_explained_without_waiting_for_the_rest(fake):
    fake.trace = a_trace(complete=False)
    async with watching(fake) as pilot:
        await keys(pilot, "3", "enter")
        shown = lambda: "queue +36ms" in screen_text(pilot.app)  # noqa: E731
        await until(pilot, shown, timeout_s=5.0)


async def test_too_few_to_compare_and_not_stored_any_more_are_said(fake):
    phases = [phase.model_copy(update={"median_ms": None}) for phase in an_explanation().phases]
    fake.insight.explanation = an_explanation(
        verdict="There is nothing to compare with.", causes=[], phases=phases, cohort_size=1
    )
    async with watching(fake) as pilot:
        await keys(pilot, "3", "enter")
        await until_shown(pilot, "Too few requests to compare with: 1.")
        fake.insight.problem = OLD.model_copy(update={"code": "not_found"})
        await keys(pilot, "escape", "enter")
        await until_shown(pilot, "not stored any more", "prefill")


async def test_an_older_server_is_said_in_a_line_on_every_screen(fake):
    fake.insight.problem = OLD
    async with watching(fake) as pilot:
        await keys(pilot, "3", "enter")
        await until_shown(pilot, "This server does not explain", "prefill")
        for key, words in (("6", "this server cannot"), ("7", "cannot do that"), ("2", "cannot")):
            await keys(pilot, key)
            await until_shown(pilot, words)
        await keys(pilot, "y")
        await until_shown(pilot, "this server cannot do that")
        await keys(pilot, "escape", "m", "enter")
        await until_shown(pilot, "it is older than this dashboard")


# promises


async def test_a_burning_promise_is_on_top_of_every_screen_in_words(fake):
    async with watching(fake) as pilot:
        await until_shown(pilot, "SLO ✓ ok", "TTFT ✓ ok 55% left")
        fake.publish("stats", stats(slos=[an_slo(state="paging", budget_left=0.04)]))
        await until_shown(pilot, "SLO ✗ PAGING", "TTFT ✗ PAGING 4% left")
        await keys(pilot, "3")
        await until_shown(pilot, "SLO ✗ PAGING", "requests · 1")
        await pilot.resize_terminal(*LARGE)
        await keys(pilot, "1")
        await until_shown(pilot, "promises (SLOs)", "BURN 5m", "TTFT ≤500ms 99%", "budget of 30")


async def test_a_server_without_promises_leaves_no_hole(fake):
    fake.snapshot = a_snapshot()
    async with watching(fake) as pilot:
        assert "SLO" not in screen_text(pilot.app)


# events, logs, audit, moments


async def test_events_logs_and_audit_are_one_screen(fake):
    async with watching(fake) as pilot:
        await keys(pilot, "6")
        await at_every_size(pilot, "[events]", "e1 was killed", "e0 is ready", "● follow")
        fake.publish("event", an_event(3, "e1 serves again"))
        await until_shown(pilot, f"▸ {clock(AT)} INFO e0", "e1 serves again")
        await keys(pilot, "l")
        await at_every_size(pilot, "[logs] · audit · 2", "listening", "WARN e0", "drained")
        await keys(pilot, "a")
        await at_every_size(pilot, "[audit]", "403 POST /engines/e0/sleep", "202 POST")
        await keys(pilot, "v")
        await until_shown(pilot, "✓ the audit log is whole: 2 entries")
        await keys(pilot, "right")
        await until_shown(pilot, "[events]")


async def test_new_lines_come_and_follow_can_be_left(fake):
    fake.insight.lines = [a_line(number, f"line {number}") for number in range(1, 41)]
    async with watching(fake) as pilot:
        await keys(pilot, "6", "l")
        await until_shown(pilot, "line 40", "● follow")
        await keys(pilot, "up")
        await until_shown(pilot, "○ stays", f"▸ {clock(AT)} INFO gateway-0  gateway line 39")
        fake.insight.lines.append(a_line(41, "line 41"))
        await until_shown(pilot, "logs] · audit · 41")
        assert listing(pilot, "journal").selected == "line:39"
        await keys(pilot, "f")
        await until_shown(pilot, "● follow", f"▸ {clock(AT)} INFO gateway-0  gateway line 41")


async def test_the_filter_sorts_out_and_escape_drops_it(fake):
    async with watching(fake) as pilot:
        await keys(pilot, "6", "l")
        await until_shown(pilot, "listening", "drained")
        await keys(pilot, "slash")
        pilot.app.screen.query_one(Input).value = "level=warning"
        await pilot.press("enter")
        await until_shown(pilot, "1 of", "drained")
        assert "listening" not in screen_text(pilot.app)
        await keys(pilot, "escape")
        await until_shown(pilot, "listening", "drained")
        await keys(pilot, "escape")
        await until(pilot, lambda: isinstance(pilot.app.screen, FleetScreen))


async def test_enter_opens_the_trace_of_a_line_or_the_line_itself(fake):
    fake.insight.lines = [a_line(1, request_id=REQUEST_ID, trace_id="ab" * 16)]
    async with watching(fake) as pilot:
        await keys(pilot, "6", "l")
        await until_shown(pilot, "listening", "trace abab")
        await keys(pilot, "enter")
        await until(pilot, lambda: isinstance(pilot.app.screen, TraceScreen))
        await keys(pilot, "escape", "e")
        await until_shown(pilot, "e1 was killed")
        await keys(pilot, "enter")
        await until(pilot, lambda: isinstance(pilot.app.screen, PageScreen))
        await until_shown(pilot, "engine.ready", "level")


async def test_a_broken_audit_log_is_told(fake):
    fake.insight.check = AuditCheck(ok=False, entries=9, first_bad_seq=4, problem="entry changed")
    async with watching(fake, LARGE) as pilot:
        await keys(pilot, "6", "v")
        await until_shown(pilot, "✗ the audit log is broken at entry 4: entry changed")


async def test_what_happened_at_a_time(fake):
    async with watching(fake) as pilot:
        await keys(pilot, "m")
        await until_shown(pilot, "What happened at")
        field = pilot.app.screen.query_one(Input)
        field.value = "soon"
        await pilot.press("enter")
        await until_shown(pilot, "this is no time")
        field.value = "2026-01-05T12:00:30Z"
        await pilot.press("enter")
        told = ("e1 died of signal 9", "41", "its engine died", "busy 82%")
        await at_every_size(pilot, *told)
        await keys(pilot, "enter")
        await until(pilot, lambda: isinstance(pilot.app.screen, TraceScreen))
        await keys(pilot, "escape", "escape")
        await until(pilot, lambda: isinstance(pilot.app.screen, FleetScreen))

    asked = next(call[2] for call in fake.calls if call[0] == "moment")
    assert asked == {"at": asked["at"], "window_s": "60.0"}
    at = datetime.fromisoformat(asked["at"])
    assert at == datetime(2026, 1, 5, 12, 0, 30, tzinfo=UTC)
    assert at.utcoffset() == at.astimezone().utcoffset(), "the answer tells the time as we read it"


# operations, profiles, stacks, telemetry


async def test_a_profile_is_confirmed_sent_and_told_with_its_files(fake):
    async with watching(fake) as pilot:
        await keys(pilot, "f")
        await until_shown(pilot, "Profile engine e0", "(•) operations only")
        await keys(pilot, "enter")
        await until(pilot, lambda: isinstance(pilot.app.screen, FleetScreen))
        assert fake.calls == [], "cancel is the default"

        await keys(pilot, "f")
        await until_shown(pilot, "Profile engine e0")
        dialog = pilot.app.screen
        dialog.query_one(Input).value = "7"
        await pilot.press("shift+tab", "shift+tab", "down", "tab", "enter")
        await until_shown(pilot, "✓ profiled e0", "7 lists its files")
        await keys(pilot, "7")
        await at_every_size(pilot, "profile", "prof-2", "prof-1", "17 MB")
        await keys(pilot, "tab", "enter")
        await at_every_size(pilot, "quarterdeck profile get prof-2", "ui.perfetto.dev", "merged")

    sent = next(call for call in fake.calls if call[:2] == ("POST", "/profiles"))[2]
    assert (sent["engine"], sent["steps"], sent["with_stacks"]) == ("e0", 7, True)


async def test_steps_out_of_range_cannot_be_pressed(fake):
    async with watching(fake) as pilot:
        await keys(pilot, "f")
        await until_shown(pilot, "Profile engine e0")
        dialog = pilot.app.screen
        for wrong in ("0", "201", ""):
            dialog.query_one(Input).value = wrong
            await until(pilot, lambda: dialog.query_one("#verb", Button).disabled)
        dialog.query_one(Input).value = "60"
        await until(pilot, lambda: not dialog.query_one("#verb", Button).disabled)
        dialog.query_one(Choice).focus()
        await pilot.press("down")
        await until(pilot, lambda: dialog.query_one("#verb", Button).disabled)


async def test_an_operation_opens_as_a_page(fake):
    async with watching(fake) as pilot:
        await keys(pilot, "7")
        await until(pilot, lambda: isinstance(pilot.app.screen, OperationsScreen))
        await until_shown(pilot, "nothing was ordered yet", "prof-1")
        progress = {"done": 5, "total": 20, "unit": "steps"}
        fake.publish("operation", an_operation(state="running", ended_at=None, progress=progress))
        await until_shown(pilot, "◑ running")
        await keys(pilot, "enter")
        await until_shown(pilot, "sleep e0", "op-1", "freed_bytes")


async def test_stacks_are_confirmed_and_shown_on_a_page(fake):
    async with watching(fake) as pilot:
        await keys(pilot, "d")
        await until_shown(pilot, "Dump stacks of e0", "4711")
        await pilot.press("shift+tab", "enter")
        await at_every_size(pilot, 'Thread 4711 (active): "MainThread"', "step (engine/core/loop.")
        await keys(pilot, "escape")
        await until(pilot, lambda: isinstance(pilot.app.screen, FleetScreen))

    assert fake.calls == [("POST", "/engines/e0/stacks", None)]


async def test_the_engine_screen_shows_facts_steps_and_the_next_engine(fake):
    engines = [an_engine("e0", last_exit="signal 9"), an_engine("e1", model="other")]
    fake.snapshot = a_snapshot(engines=engines)
    source = LiveSource(Endpoint(socket_path=fake.socket_path), backoff=Backoff(0.02, 0.05))
    async with serving(fake), an_app(source).run_test(size=SMALL) as pilot:
        await until_shown(pilot, "● READY 2/2")
        await keys(pilot, "2")
        facts = ("[e0] e1", "signal 9", "1.9k", "420ms", "req-01234567", "longest")
        await at_every_size(pilot, *facts)
        await keys(pilot, "right_square_bracket")
        await until_shown(pilot, "e0 [e1]", "other")
        await keys(pilot, "escape")
        await until(pilot, lambda: isinstance(pilot.app.screen, FleetScreen))


async def test_a_running_engine_shows_its_own_steps_and_c_those_of_the_crash(fake):
    fake.insight.live_flight = a_flight(epoch=7, alive=True, last_exit=None)
    fake.insight.flight = a_flight(epoch=6, alive=False, last_exit="SIGKILL")
    async with watching(fake) as pilot:
        await keys(pilot, "2")
        await until_shown(pilot, "epoch 7 · alive")
        await keys(pilot, "c")
        await until_shown(pilot, "epoch 6 · dead: SIGKILL")
        await keys(pilot, "c")
        await until_shown(pilot, "epoch 7 · alive")


async def test_telemetry_is_shown_and_changed_after_a_question(fake):
    async with watching(fake) as pilot:
        await keys(pilot, "y")
        await at_every_size(pilot, "recording", "✗ failing", "connection refused", "▲ 12")
        await keys(pilot, "enter")
        await until_shown(pilot, "Switch recording off", "No trace or explanation")
        await keys(pilot, "enter")
        await until(pilot, lambda: isinstance(pilot.app.screen, TelemetryScreen))
        assert fake.insight.settings.recording, "cancel is the default"
        await keys(pilot, "enter")
        await until_shown(pilot, "Switch recording off")
        await pilot.press("shift+tab", "enter")
        await until_shown(pilot, "✓ recording is off now", "○ off")
        await keys(pilot, "down", "down", "enter")
        await until_shown(pilot, "Set ratio")
        pilot.app.screen.query_one(Input).value = "0.5"
        await pilot.press("enter", "enter")
        await until_shown(pilot, "✓ ratio is 0.5 now")

    sent = [call[2] for call in fake.calls if call[0] == "PATCH"]
    assert sent == [{"recording": False}, {"trace_ratio": 0.5}]


# scope, harm, anything


async def test_a_viewer_may_look_and_an_operator_may_not_record_contents(fake):
    fake.whoami = WhoAmI(actor="k1", scope="viewer", transport="tcp")
    async with watching(fake) as pilot:
        for key in "fd":
            await keys(pilot, key)
            await until_shown(pilot, "this key has the scope viewer; operator is needed")
            assert isinstance(pilot.app.screen, FleetScreen)
        await keys(pilot, "6", "a")
        await until_shown(pilot, "admin is needed", "[events]")
        await keys(pilot, "y")
        await until_shown(pilot, "recording")
        await keys(pilot, "enter")
        await until_shown(pilot, "operator is needed")
        fake.whoami = WhoAmI(actor="k2", scope="operator", transport="tcp")
        pilot.app.session.take(fake.whoami)
        await pilot.press("home", *["down"] * 8)
        await until(pilot, lambda: listing(pilot, "telemetry").selected == "content")
        await keys(pilot, "enter")
        await until_shown(pilot, "the scope operator; admin is needed")

    assert fake.calls == []


async def test_a_failure_of_the_server_is_told_and_no_crash(fake):
    fake.insight.problem = Problem(
        title="t", status=503, code="storage_unavailable", detail="the disk is full", hint="free it"
    )
    async with watching(fake) as pilot:
        for key in "627":
            await keys(pilot, key)
            await until_shown(pilot, "the disk is full")
        await keys(pilot, "m", "enter")
        await until_shown(pilot, "the disk is full (storage_unavailable) · free it")
        fake.insight.problem = None
        await keys(pilot, "escape", "7")
        await until_shown(pilot, "prof-1")


async def test_injected_escapes_do_not_reach_the_terminal(fake):
    insight = fake.insight
    insight.explanation = an_explanation(verdict=EVIL, cohort=EVIL)
    insight.lines = [a_line(1, EVIL, process=EVIL, logger=EVIL)]
    insight.moment = insight.moment.model_copy(update={"summary": [EVIL], "engines": {EVIL: {}}})
    insight.flight = insight.flight.model_copy(update={"last_exit": EVIL, "alive": False})
    insight.settings.collector.last_error = EVIL
    texts = []
    async with watching(fake) as pilot:
        for pressed, words in (
            (("3", "enter"), "critical path"),
            (("6", "l"), "[logs] · audit · 1"),
            (("2", "c"), "dead: "),
            (("y",), "last error"),
            (("escape", "m", "enter"), "his hour"),
        ):
            await keys(pilot, *pressed)
            texts.append(await until_shown(pilot, words))

    for text in texts:
        assert all(part.isprintable() for part in text.split("\n"))
        assert "\u202e" not in text


async def test_the_server_sorts_out_log_lines(fake):
    async with watching(fake) as pilot:
        insight = pilot.app.session.source.insight
        async with asyncio.timeout(5):
            lines = await insight.logs(LogQuery(contains="drained"))
        assert [row.text for row in lines] == ["drained"]
