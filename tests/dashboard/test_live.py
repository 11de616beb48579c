"""The dashboard against a real HTTP server on a unix socket."""

import contextlib

import pytest

from appliance.supervisor.admin.schemas import SleepBody, WhoAmI
from dashboard.client.api import AdminApi, Endpoint
from dashboard.client.problems import ApiProblem, UnreachableError
from dashboard.client.sse import Backoff
from dashboard.screens.fleet import FleetScreen
from dashboard.screens.trace import TraceScreen
from dashboard.source.live import LiveSource
from tests.dashboard.samples import a_request, a_snapshot, an_engine, an_event, stats
from tests.dashboard.server import AdminFake, problem, serving
from tests.dashboard.terminal import an_app, until, until_shown

pytestmark = pytest.mark.anyio

SMALL = (80, 24)
EVIL = "\x1b]52;c;ZXZpbA==\x07\x1b[2J\x1b[6n\u202e[@click=app.quit]x[/]"


@pytest.fixture
def fake(run_dir):
    return AdminFake(run_dir)


@contextlib.asynccontextmanager
async def watching(fake):
    source = LiveSource(Endpoint(socket_path=fake.socket_path), backoff=Backoff(0.02, 0.05))
    async with an_app(source).run_test(size=SMALL) as pilot:
        yield pilot


async def test_frames_of_the_stream_reach_the_screen(fake):
    async with serving(fake), watching(fake) as pilot:
        await until_shown(pilot, "here:8001", "● READY 1/1", "local admin", "press t to send one")

        fake.publish("request", a_request(state="decode", completion_tokens=12))
        fake.publish("stats", stats(generation_tokens_per_s=42.0, running=1))
        fake.publish("event", an_event(text="e0 took a breath"))
        await until_shown(pilot, "req-01234567", "DECODE", "42.0/s", "e0 took a breath")

        fake.publish("request", a_request(state="finished"))
        await until_shown(pilot, "✓ DONE")


async def test_sleep_is_confirmed_sent_awaited_and_told(fake):
    async with serving(fake), watching(fake) as pilot:
        await until_shown(pilot, "● READY 1/1")
        await pilot.press("s")
        await until_shown(pilot, "Sleep engine e0")
        await pilot.press("tab", "tab", "down", "tab", "enter")
        await until_shown(pilot, "☾ ASLEEP L1", "✓ slept e0: freed 268 MB in 0.4s")

    assert fake.calls[0] == ("sleep", "e0", {"level": 1, "mode": "abort", "timeout_s": 60.0})
    assert fake.calls[1][0] == "operation"
    assert float(fake.calls[1][2]["wait"]) > 0


async def test_escape_in_the_dialog_sends_nothing(fake):
    async with serving(fake), watching(fake) as pilot:
        await until_shown(pilot, "● READY 1/1")
        await pilot.press("s")
        await until_shown(pilot, "Sleep engine e0")
        await pilot.press("escape")
        await until(pilot, lambda: isinstance(pilot.app.screen, FleetScreen))

    assert fake.calls == []


async def test_abort_is_confirmed_and_told(fake):
    fake.snapshot = a_snapshot(requests=[a_request()])
    async with serving(fake), watching(fake) as pilot:
        await until_shown(pilot, "DECODE")
        await pilot.press("x")
        await until_shown(pilot, "Abort req-01234567")
        await pilot.press("shift+tab", "enter")
        await until_shown(pilot, "✓ aborted req-01234567 after 7 tokens")

    assert [call[0] for call in fake.calls] == ["abort"]


async def test_a_refusal_shows_detail_and_hint(fake):
    async with serving(fake), watching(fake) as pilot:
        await until_shown(pilot, "● READY 1/1")
        fake.refusal = problem(403, "forbidden", detail="needs operator", hint="ask an admin")
        await pilot.press("s", "shift+tab", "enter")
        await until_shown(pilot, "needs operator (forbidden)", "ask an admin")


async def test_a_viewer_is_told_before_anything_is_sent(fake):
    fake.whoami = WhoAmI(actor="k1", scope="viewer", transport="tcp")
    async with serving(fake), watching(fake) as pilot:
        await until_shown(pilot, "● READY 1/1", "key viewer")
        for key in "swr":
            await pilot.press(key)
            await until_shown(pilot, "this key has the scope viewer; operator is needed")
        await pilot.press("3")
        await until_shown(pilot, "x abort")

    assert fake.calls == []


async def test_a_broken_stream_is_stale_keeps_its_data_and_resumes(fake):
    async with serving(fake), watching(fake) as pilot:
        await until_shown(pilot, "● READY 1/1")
        fake.publish("engine", an_engine(state="draining"))
        await until_shown(pilot, "DRAINING")

        fake.cut()
        await until(pilot, lambda: len(fake.resumed_from) == 2)
        fake.publish("engine", an_engine())
        await until_shown(pilot, "● READY 1/1", "LIVE")

    assert fake.resumed_from == [None, "101"]


async def test_a_server_that_went_away_is_stale_until_it_is_back(fake):
    async with watching(fake) as pilot:
        async with serving(fake):
            await until_shown(pilot, "● READY 1/1", "LIVE")
        text = await until_shown(pilot, "✗ STALE", "trying again")
        assert "● READY" in text, "the last data stays"

        fake.snapshot = a_snapshot(engines=[an_engine("e0"), an_engine("e1")])
        async with serving(fake):
            await until_shown(pilot, "● READY 2/2", "LIVE")

    assert fake.resumed_from[-1] is None, "another process may not know the old ids"


async def test_an_instance_that_was_started_anew_is_followed_to_its_new_socket(run_dir, fake):
    (run_dir / "again").mkdir()
    later = AdminFake(run_dir / "again")
    later.snapshot = a_snapshot(engines=[an_engine("e0"), an_engine("e1")])
    now = [fake.socket_path]
    source = LiveSource(
        Endpoint(socket_path=now[0]), backoff=Backoff(0.02, 0.05), locate=lambda: now[-1]
    )
    async with an_app(source).run_test(size=SMALL) as pilot:
        async with serving(fake):
            await until_shown(pilot, "● READY 1/1", "LIVE")
        await until_shown(pilot, "✗ STALE")
        now.append(later.socket_path)
        async with serving(later):
            await until_shown(pilot, "● READY 2/2", "LIVE")

    assert later.resumed_from == [None]


async def test_no_server_is_said_with_what_to_do(fake):
    async with watching(fake) as pilot:
        await until_shown(pilot, "NO LINK", "quarterdeck serve")


async def test_a_refused_stream_says_why(fake):
    fake.refusal = problem(401, "no_key", detail="a key is needed")
    async with serving(fake), watching(fake) as pilot:
        await until_shown(pilot, "a key is needed (no_key)")


async def test_a_tried_prompt_goes_to_the_data_socket_and_opens_its_trace(fake):
    async with serving(fake, fake.socket_path, fake.data_path), watching(fake) as pilot:
        await until_shown(pilot, "● READY 1/1")
        await pilot.press("t")
        await until_shown(pilot, "Try smollm2")
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(pilot.app.screen, TraceScreen))
        text = await until_shown(pilot, "4 output messages", "67 % queued")

    assert "✓ complete" in text
    chat = next(call for call in fake.calls if call[0] == "chat")
    assert chat[2]["model"] == "smollm2"


async def test_a_trace_that_does_not_exist_yet_is_waited_for(fake):
    fake.snapshot = a_snapshot(requests=[a_request()])
    fake.trace = fake.trace.model_copy(update={"request": a_request("req-other")})
    async with serving(fake), watching(fake) as pilot:
        await until_shown(pilot, "DECODE")
        await pilot.press("3", "enter")
        await until_shown(pilot, "the trace comes when it ends")
        fake.trace = fake.trace.model_copy(update={"request": a_request(state="finished")})
        await until_shown(pilot, "decode", "queue")


async def test_injected_escapes_do_not_reach_the_terminal(fake):
    evil = an_engine(model=EVIL, reason=EVIL, served_names=[EVIL])
    row = a_request(model=EVIL, key_id=EVIL, error_code=EVIL, state="failed")
    fake.snapshot = a_snapshot(engines=[evil], requests=[row], events=[an_event(text=EVIL)])
    fake.trace = fake.trace.model_copy(update={"request": row, "headline": EVIL})
    async with serving(fake), watching(fake) as pilot:
        texts = [await until_shown(pilot, "FAILED")]
        for keys, words in (
            (("s",), "Sleep engine"),
            (("escape", "t"), "Try "),
            (("escape", "3", "enter"), "self ms"),
        ):
            await pilot.press(*keys)
            texts.append(await until_shown(pilot, words))

    for text in texts:
        assert all(part.isprintable() for part in text.split("\n"))
        assert "\u202e" not in text


async def test_a_problem_carries_code_hint_and_allowed_actions(fake):
    fake.refusal = problem(
        409, "conflict", detail="e0 is asleep", hint="wake it", allowed_actions=["wake"]
    )
    api = AdminApi(Endpoint(socket_path=fake.socket_path))
    async with serving(fake):
        with pytest.raises(ApiProblem, match="e0 is asleep") as caught:
            await api.sleep("e0", SleepBody())
        await api.aclose()

    refused = caught.value
    assert (refused.status, refused.code, refused.hint) == (409, "conflict", "wake it")
    assert refused.allowed_actions == ["wake"]


async def test_an_answer_that_makes_no_sense_is_no_crash(fake):
    api = AdminApi(Endpoint(socket_path=fake.socket_path))
    async with serving(fake):
        with pytest.raises(ApiProblem) as caught:
            await api.engines()
        await api.aclose()
    with pytest.raises(UnreachableError):
        await AdminApi(Endpoint(socket_path=fake.socket_path)).system()

    assert caught.value.code in ("http_404", "http_405")


def test_a_key_is_not_in_the_text_of_its_endpoint():
    endpoint = Endpoint(base_url="http://127.0.0.1:1", api_key="qd-secret")

    assert "qd-secret" not in repr(endpoint)
