"""The screens with the invented instance, at both sizes."""

import asyncio
import itertools

import pytest
from textual.widgets import Button, Input

from dashboard.app import QuarterdeckTop
from dashboard.screens.fleet import FleetScreen
from dashboard.screens.requests import RequestsScreen
from dashboard.screens.sleep import SleepDialog
from dashboard.screens.trace import TraceScreen
from dashboard.session import Session
from dashboard.source.demo import DemoSource
from dashboard.widgets.listing import Listing, Panel
from tests.dashboard.terminal import an_app, screen_lines, screen_text, until, until_shown

pytestmark = pytest.mark.anyio

SMALL, LARGE = (80, 24), (160, 45)


async def quick() -> None:
    await asyncio.sleep(0.1)


async def never() -> None:
    await asyncio.Event().wait()


def demo_app(pace=None) -> QuarterdeckTop:
    """With a pace the demo runs; without one both it and the clock stand still."""
    return an_app(DemoSource(quick)) if pace else an_app(DemoSource(never), lambda: 100.0)


@pytest.mark.parametrize("size", [SMALL, LARGE])
async def test_the_fleet_shows_engines_traffic_latency_and_requests(size):
    async with demo_app().run_test(size=size) as pilot:
        text = await until_shown(pilot, "● READY", "☾ ASLEEP L1", "DECODE")

        for words in ("READY 3/4", "LIVE 0s", "TTFT", "ITL", "queue", "out ", "peak out", "q quit"):
            assert words in text
        assert "4 total · 3 serving · 1 asleep" in text


async def test_the_large_fleet_shows_more():
    async with demo_app().run_test(size=LARGE) as pilot:
        await until_shown(pilot, "PID", "TREND", "KEY", "gateway-0", "events", "KV e0")


async def test_every_panel_of_the_small_fleet_has_room_for_its_lines():
    async with demo_app().run_test(size=SMALL) as pilot:
        await until_shown(pilot, "DECODE")

        for panel_id in ("throughput", "latency"):
            panel = pilot.app.screen.query_one(f"#{panel_id}", Panel)
            assert len(panel._lines) <= panel.content_size.height
        assert pilot.app.screen.query_one("#engines", Listing).position() == ""
        assert pilot.app.screen.query_one("#requests", Listing).content_size.height >= 4


async def test_the_demo_is_the_same_each_time():
    texts = []
    for _ in range(2):
        async with demo_app().run_test(size=SMALL) as pilot:
            texts.append(await until_shown(pilot, "DECODE", "READY 3/4", "% left"))

    assert texts[0].split("\n")[:20] == texts[1].split("\n")[:20]


async def test_a_tick_that_comes_while_the_app_closes_finds_no_screen_and_paints_nothing():
    app = QuarterdeckTop(Session(DemoSource(never), itertools.count().__next__))
    async with app.run_test(size=SMALL) as pilot:
        await until_shown(pilot, "DECODE")
    painted = app._painted

    app._tick()

    assert app._painted == painted


@pytest.mark.parametrize("size", [SMALL, LARGE])
async def test_a_request_opens_as_a_waterfall_and_its_messages_unfold(size):
    async with demo_app().run_test(size=size) as pilot:
        await until_shown(pilot, "DECODE")
        await pilot.press("3", "slash", *"state=done", "enter")
        await until_shown(pilot, "DONE")
        await pilot.press("enter")
        text = await until_shown(pilot, "span", "self ms", "prefill")
        assert isinstance(pilot.app.screen, TraceScreen)
        for words in ("TTFT", "✓ complete", "◆", "tokenize"):
            assert words in text

        await pilot.press("end", "up")
        await until_shown(pilot, "output messages")
        await pilot.press("right")
        await until_shown(pilot, "send EngineOutputs")
        await pilot.press("left")
        await until(pilot, lambda: "send EngineOutputs" not in screen_text(pilot.app))
        await pilot.press("escape")
        await until(pilot, lambda: isinstance(pilot.app.screen, RequestsScreen))


async def test_sleep_needs_more_than_enter_and_then_tells_what_it_freed():
    async with demo_app(quick).run_test(size=SMALL) as pilot:
        await until_shown(pilot, "DECODE")
        await pilot.press("s")
        await until_shown(pilot, "Sleep engine e0", "(•) level 1", "(•) wait")
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(pilot.app.screen, FleetScreen))
        assert pilot.app.session.state.engines["e0"].state == "ready"

        await pilot.press("s", "shift+tab", "enter")
        await until_shown(pilot, "✓ slept e0: freed")
        assert pilot.app.session.state.engines["e0"].state == "asleep"


async def test_level_2_wants_the_id_typed():
    async with demo_app(quick).run_test(size=SMALL) as pilot:
        await until_shown(pilot, "DECODE")
        await pilot.press("s")
        await until(pilot, lambda: isinstance(pilot.app.screen, SleepDialog))
        dialog = pilot.app.screen
        await pilot.press("tab", "down")
        await until(pilot, lambda: dialog.query_one("#verb", Button).disabled)
        await until_shown(pilot, "(•) level 2", "type e0 to confirm")
        await pilot.press("tab", "down", "tab", "e", "0")
        await until(pilot, lambda: not dialog.query_one("#verb", Button).disabled)
        await pilot.press("tab", "enter")
        await until_shown(pilot, "☾ ASLEEP L2", "slept e0")


async def test_restart_wants_the_id_typed():
    async with demo_app(quick).run_test(size=SMALL) as pilot:
        await until_shown(pilot, "DECODE")
        await pilot.press("r", *"e1", "tab", "enter")
        await until(pilot, lambda: isinstance(pilot.app.screen, FleetScreen))
        assert pilot.app.session.state.engines["e0"].epoch == 1

        await pilot.press("r", *"e0", "enter", "enter")
        await until_shown(pilot, "restarted e0")
        assert pilot.app.session.state.engines["e0"].epoch == 2


async def test_a_verb_that_does_not_fit_says_what_would():
    async with demo_app().run_test(size=SMALL) as pilot:
        await until_shown(pilot, "DECODE")
        await pilot.press("w")
        await until_shown(pilot, "▲ e0 is ready; possible now: sleep, restart")


async def test_wake_is_confirmed_and_done():
    async with demo_app(quick).run_test(size=SMALL) as pilot:
        await until_shown(pilot, "DECODE")
        await pilot.press("down", "down", "w")
        await until_shown(pilot, "Wake engine e2")
        await pilot.press("shift+tab", "enter")
        await until_shown(pilot, "✓ woke e2")


async def test_a_tried_prompt_opens_its_trace():
    async with demo_app(quick).run_test(size=SMALL) as pilot:
        await until_shown(pilot, "DECODE")
        await pilot.press("t")
        await until_shown(pilot, "Try smollm2", "Name three parts of a ship.")
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(pilot.app.screen, TraceScreen))
        await until_shown(pilot, "span", "decode")


async def test_pause_freezes_the_panels_and_says_so():
    async with demo_app(quick).run_test(size=SMALL) as pilot:
        await until_shown(pilot, "DECODE")
        await pilot.press("p")
        frozen = (await until_shown(pilot, "PAUSED")).split("\n")[1:22]
        version = pilot.app.session.version
        await until(pilot, lambda: pilot.app.session.version > version + 100)
        assert screen_lines(pilot.app)[1:22] == frozen
        await pilot.press("p")
        await until(pilot, lambda: screen_lines(pilot.app)[1:22] != frozen)


async def test_enter_on_an_engine_shows_its_requests():
    async with demo_app().run_test(size=SMALL) as pilot:
        await until_shown(pilot, "DECODE")
        await pilot.press("enter")
        await until_shown(pilot, "engine=e0")
        assert isinstance(pilot.app.screen, RequestsScreen)
        assert " e1 " not in screen_text(pilot.app)
        await pilot.press("escape")
        await until(pilot, lambda: not pilot.app.screen.query_one("#filter", Input).display)
        await pilot.press("escape")
        await until(pilot, lambda: isinstance(pilot.app.screen, FleetScreen))


async def test_the_cursor_stays_on_its_request_while_others_come():
    async with demo_app(quick).run_test(size=SMALL) as pilot:
        await until_shown(pilot, "DECODE")
        await pilot.press("3", "down", "down")
        listing = pilot.app.screen.query_one("#requests", Listing)
        chosen = listing.selected
        version = pilot.app.session.version
        await until(pilot, lambda: pilot.app.session.version > version + 200)
        assert listing.selected == chosen


async def test_help_and_palette_know_the_actions():
    async with demo_app().run_test(size=SMALL) as pilot:
        await until_shown(pilot, "DECODE")
        await pilot.press("question_mark")
        await until_shown(pilot, "POST /admin/v1/engines/{id}/sleep")
        await pilot.press("escape")
        await pilot.press("ctrl+p")
        await until_shown(pilot, "restart…", "[not now: e0 is ready")


async def test_nothing_is_painted_when_nothing_changed():
    async with demo_app().run_test(size=SMALL) as pilot:
        await until_shown(pilot, "DECODE")
        panels = [*pilot.app.screen.query(Panel)]
        painted = []
        pilot.app.screen.paint()
        for panel in panels:
            if panel.id != "top":
                panel.refresh = lambda *regions, _id=panel.id, **_options: painted.append(_id)
        pilot.app.screen.paint()
        assert painted == []


async def test_any_size_can_be_drawn():
    async with demo_app().run_test(size=SMALL) as pilot:
        await until_shown(pilot, "DECODE")
        for size in ((20, 5), (79, 24), (121, 20), (60, 60), SMALL):
            await pilot.resize_terminal(*size)
            await pilot.pause(0.05)
            assert len(screen_lines(pilot.app)) == size[1]
