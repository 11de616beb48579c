"""The adapters screen: in the demo at both sizes, and against a server."""

import asyncio
import contextlib

import pytest
from textual.widgets import Button

from appliance.supervisor.admin.schemas import AdapterOnEngine, WhoAmI
from dashboard.client.api import Endpoint
from dashboard.client.sse import Backoff
from dashboard.screens.adapters import AdaptersScreen
from dashboard.screens.fleet import FleetScreen
from dashboard.screens.load_adapter import LoadAdapterDialog
from dashboard.screens.requests import RequestsScreen
from dashboard.source.demo import DemoSource
from dashboard.source.live import LiveSource
from dashboard.store.state import State, reduce
from dashboard.view.adapters import adapter_rows, root_lines
from dashboard.view.fleet import engine_rows
from dashboard.view.lines import plain
from tests.dashboard.samples import a_request, a_snapshot, an_adapter, an_engine
from tests.dashboard.server import AdminFake, problem, serving
from tests.dashboard.terminal import an_app, until, until_shown

pytestmark = pytest.mark.anyio

SMALL, LARGE = (80, 24), (160, 45)
EVIL = "\x1b]52;c;ZXZpbA==\x07\x1b[2J\u202e[@click=app.quit]x[/]"


async def quick() -> None:
    await asyncio.sleep(0.1)


async def never() -> None:
    await asyncio.Event().wait()


@pytest.fixture
def fake(run_dir):
    return AdminFake(run_dir)


@contextlib.asynccontextmanager
async def watching(fake):
    """The adapters screen of a server."""
    source = LiveSource(Endpoint(socket_path=fake.socket_path), backoff=Backoff(0.02, 0.05))
    async with serving(fake), an_app(source).run_test(size=SMALL) as pilot:
        await until_shown(pilot, "● READY 1/1", "local admin" if fake.whoami.key is None else "key")
        await pilot.press("5")
        await until(pilot, lambda: isinstance(pilot.app.screen, AdaptersScreen))
        yield pilot


@pytest.mark.parametrize("size", [SMALL, LARGE])
async def test_the_list_shows_state_rank_size_pin_users_and_engines(size):
    async with an_app(DemoSource(never), lambda: 100.0).run_test(size=size) as pilot:
        await until_shown(pilot, "DECODE")
        await pilot.press("5")
        text = await until_shown(pilot, "sql-lora", "chat-lora")

        for words in ("● LOADED", "pin", "16", "1.8 MB", "e0●", "e2○", "2 loaded", "/srv/adapters"):
            assert words in text
        for key in ("n load…", "u unload…", "i pin…", "? help", "q quit"):
            assert key in text
        assert ("q_proj k_proj" in text) == (size == LARGE)
        await pilot.press("escape")
        await until(pilot, lambda: isinstance(pilot.app.screen, FleetScreen))


async def test_the_fleet_says_how_many_adapters_an_engine_has():
    async with an_app(DemoSource(never), lambda: 100.0).run_test(size=SMALL) as pilot:
        await until_shown(pilot, "+2 LoRA")


async def test_a_load_is_filled_in_pressed_and_told():
    async with an_app(DemoSource(quick)).run_test(size=SMALL) as pilot:
        await until_shown(pilot, "DECODE")
        await pilot.press("5")
        await until_shown(pilot, "chat-lora")
        await pilot.press("n")
        await until_shown(pilot, "Load adapter", "/srv/adapters/")
        verb = pilot.app.screen.query_one("#verb", Button)
        assert verb.disabled
        await pilot.press(*"tone", "enter", *"tone", "tab", "down", "tab")
        await until(pilot, lambda: verb.has_focus)
        await pilot.press("enter")
        await until_shown(pilot, "✓ loaded tone: rank 16, 1.8 MB")

        state = pilot.app.session
        await until(pilot, lambda: state.state.engines["e0"].adapters[-1] == "tone")
        assert state.state.adapters["tone"].pinned


async def test_enter_in_a_field_loads_nothing_and_escape_leaves():
    async with an_app(DemoSource(quick)).run_test(size=SMALL) as pilot:
        await until_shown(pilot, "DECODE")
        await pilot.press("5", "n")
        await until(pilot, lambda: isinstance(pilot.app.screen, LoadAdapterDialog))
        await pilot.press(*"tone", "enter", "enter")
        assert isinstance(pilot.app.screen, LoadAdapterDialog)
        await pilot.press("escape")
        await until(pilot, lambda: isinstance(pilot.app.screen, AdaptersScreen))
        assert "tone" not in pilot.app.session.state.adapters


async def test_unload_and_pin_are_confirmed_and_done():
    async with an_app(DemoSource(quick)).run_test(size=SMALL) as pilot:
        await until_shown(pilot, "DECODE")
        await pilot.press("5")
        await until_shown(pilot, "chat-lora")
        await pilot.press("i")
        await until_shown(pilot, "Pin adapter chat-lora")
        await pilot.press("enter")
        assert not pilot.app.session.state.adapters["chat-lora"].pinned, "cancel is the default"
        await pilot.press("i")
        await until_shown(pilot, "Pin adapter chat-lora")
        await pilot.press("shift+tab", "enter")
        await until_shown(pilot, "✓ pinned chat-lora")
        await until(pilot, lambda: pilot.app.session.state.adapters["chat-lora"].pinned)
        await pilot.press("i")
        await until_shown(pilot, "Unpin adapter chat-lora")
        await pilot.press("escape", "u")
        await until_shown(pilot, "Unload adapter chat-lora", "Later ones that name it are refused")
        await pilot.press("shift+tab", "enter")
        await until_shown(pilot, "✓ unloaded chat-lora")
        await until(pilot, lambda: "chat-lora" not in pilot.app.session.state.adapters)


async def test_a_path_that_is_refused_is_told_with_what_to_do():
    async with an_app(DemoSource(never), lambda: 100.0).run_test(size=LARGE) as pilot:
        await until_shown(pilot, "DECODE")
        await pilot.press("5", "n")
        await until(pilot, lambda: isinstance(pilot.app.screen, LoadAdapterDialog))
        await pilot.press("x", "tab", "home", *"/etc", "tab", "tab", "enter")
        await until_shown(pilot, "no such directory below an adapter root", "the demo has")


async def test_enter_shows_the_requests_of_the_adapter_and_a_prompt_goes_to_it(fake):
    fake.snapshot = a_snapshot(
        adapters=[an_adapter()],
        requests=[a_request(model="sql-lora"), a_request("req-" + "f" * 24)],
    )
    async with watching(fake) as pilot:
        await until_shown(pilot, "sql-lora")
        await pilot.press("t")
        await until_shown(pilot, "Try sql-lora")
        await pilot.press("escape", "enter")
        await until(pilot, lambda: isinstance(pilot.app.screen, RequestsScreen))
        text = await until_shown(pilot, "model=sql-lora", "req-01234567")
        assert "req-ffffffff" not in text


async def test_what_the_server_says_of_adapters_is_shown_and_forgotten(fake):
    async with watching(fake) as pilot:
        await until_shown(pilot, "no adapter is loaded", "roots /srv/adapters")
        fake.publish("adapter", an_adapter(state="loading", rank=None, num_bytes=None))
        await until_shown(pilot, "◐ LOADING")
        refused = AdapterOnEngine(engine="e0", state="error", error="its files have changed")
        fake.publish("adapter", an_adapter(state="error", engines=[refused]))
        await until_shown(pilot, "✗ ERROR", "└ not on e0: its files have changed")
        fake.publish("adapter", an_adapter(state="removed"))
        await until_shown(pilot, "no adapter is loaded")


async def test_the_verbs_are_sent_and_awaited(fake):
    fake.snapshot = a_snapshot(adapters=[an_adapter()])
    async with watching(fake) as pilot:
        await until_shown(pilot, "sql-lora")
        await pilot.press("n")
        await until_shown(pilot, "Load adapter", "below /srv/adapters")
        await pilot.press(*"tone", "tab", "x", "tab", "tab", "enter")
        await until_shown(pilot, "✓ loaded tone: rank 16, 1.8 MB in 0.4s")
        await pilot.press("home", "i", "shift+tab", "enter")
        await until_shown(pilot, "✓ pinned sql-lora")
        await pilot.press("u")
        await until_shown(pilot, "Unload adapter sql-lora")
        await pilot.press("shift+tab", "enter")
        await until_shown(pilot, "✓ unloaded sql-lora")

    body = {"path": "/srv/adapters/x", "pinned": False, "model": None}
    assert fake.calls == [
        ("load", "tone", body),
        ("pin", "sql-lora", None),
        ("unload", "sql-lora", None),
    ]


async def test_a_refusal_of_the_server_is_told(fake):
    fake.snapshot = a_snapshot(adapters=[an_adapter()])
    fake.refusal = None
    async with watching(fake) as pilot:
        await until_shown(pilot, "sql-lora")
        fake.refusal = problem(409, "conflict", detail="lora.load is under way", hint="Wait.")
        await pilot.press("u", "shift+tab", "enter")
        await until_shown(pilot, "lora.load is under way (conflict)")


async def test_a_viewer_may_look_and_nothing_else(fake):
    fake.whoami = WhoAmI(actor="k1", scope="viewer", transport="tcp")
    fake.snapshot = a_snapshot(adapters=[an_adapter()])
    source = LiveSource(Endpoint(socket_path=fake.socket_path), backoff=Backoff(0.02, 0.05))
    async with serving(fake), an_app(source).run_test(size=SMALL) as pilot:
        await until_shown(pilot, "key viewer")
        await pilot.press("5")
        await until_shown(pilot, "sql-lora")
        for key in "nui":
            await pilot.press(key)
            await until_shown(pilot, "this key has the scope viewer; operator is needed")
            assert isinstance(pilot.app.screen, AdaptersScreen)

    assert fake.calls == []


async def test_without_a_root_the_flag_is_named(fake):
    fake.adapter_roots = []
    async with watching(fake) as pilot:
        await until_shown(pilot, "serve --adapter-root DIR")
        await pilot.press("u")
        await until_shown(pilot, "no adapter is selected")


async def test_injected_escapes_do_not_reach_the_terminal(fake):
    bad = AdapterOnEngine(engine=EVIL, state="error", error=EVIL)
    fake.snapshot = a_snapshot(
        adapters=[an_adapter(EVIL, path=EVIL, model=EVIL, targets=[EVIL], engines=[bad])]
    )
    async with watching(fake) as pilot:
        texts = [await until_shown(pilot, "1 loaded")]
        await pilot.press("u")
        texts.append(await until_shown(pilot, "Unload adapter"))

    for text in texts:
        assert all(part.isprintable() for part in text.split("\n"))
        assert "\u202e" not in text


def test_an_engine_that_computes_in_another_type_says_why():
    reason = "the CPU has no bfloat16"
    engine = an_engine(dtype="float32", dtype_reason=reason)
    state = reduce(State(), a_snapshot(engines=[engine]), 0.0)

    assert f"float32: {reason}" in plain(engine_rows(state, 0.0, 160)[0].line)


def test_the_table_has_room_for_the_engines_at_any_width():
    state = reduce(State(), a_snapshot(adapters=[an_adapter()]), 0.0)

    for width in (60, 78, 100, 158):
        assert "e0●" in plain(adapter_rows(state, 0.0, width)[0].line)
    assert root_lines(state) == []
