import io
import os
import pty
from pathlib import Path
from typing import Any

import pytest

from appliance.cli.chat import ChatOptions, run_chat
from appliance.cli.data_plane import printable
from tests.appliance.cli.fake_data_plane import (
    DONE,
    FakeDataPlane,
    chat_lines,
    chunk,
    usage_chunk,
)

Captured = pytest.CaptureFixture[str]


def type_lines(monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{line}\n" for line in lines)))


def test_one_question_gives_the_answer_on_stdout_and_figures_on_stderr(
    run_dir: Path, capsys: Captured
):
    plane = FakeDataPlane(lambda _: chat_lines("Pa", "ris", "."))
    with plane.on_socket(run_dir / "data.sock") as path:
        code = run_chat(path, None, "Capital of France?")

    out, err = capsys.readouterr()
    assert (code, out) == (0, "Paris.\n")
    assert "3 tokens · TTFT" in err
    assert "tok/s" in err
    assert plane.requests[0] == {
        "model": "smollm2",
        "messages": [{"role": "user", "content": "Capital of France?"}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0.2,
        "max_tokens": 512,
    }


def test_an_answer_has_a_bound_that_fits_a_short_context(run_dir: Path):
    plane = FakeDataPlane(lambda _: chat_lines("x"))
    plane.max_model_len = 256
    with plane.on_socket(run_dir / "data.sock") as path:
        run_chat(path, None, "hi")

    assert plane.requests[0]["max_tokens"] == 128


def test_an_answer_that_reached_its_bound_says_so(run_dir: Path, capsys: Captured):
    lines = [
        chunk({"delta": {"content": "on and"}}),
        chunk({"delta": {}, "finish_reason": "length"}),
        usage_chunk(prompt=1, completion=2),
        DONE,
    ]
    with FakeDataPlane(lambda _: lines).on_socket(run_dir / "data.sock") as path:
        assert run_chat(path, None, "hi") == 0

    assert "cut off, --max-tokens allows more]" in capsys.readouterr().err


def test_a_model_that_is_not_served_is_a_usage_error_that_names_those_that_are(
    run_dir: Path, capsys: Captured
):
    plane = FakeDataPlane(lambda _: chat_lines("x"))
    with plane.on_socket(run_dir / "data.sock") as path:
        assert run_chat(path, "nope", "hi") == 2

    message = "quarterdeck: no model 'nope' is served here; served: smollm2, other\n"
    assert capsys.readouterr().err == message
    assert plane.requests == []


def test_what_the_server_waits_for_is_told_once(run_dir: Path, capsys: Captured):
    lines = [": waiting for an engine", ": waiting for an engine", *chat_lines("x")]
    with FakeDataPlane(lambda _: lines).on_socket(run_dir / "data.sock") as path:
        run_chat(path, None, "hi")

    assert capsys.readouterr().err.count("[waiting for an engine]\n") == 1


def test_an_exchange_that_breaks_says_so(run_dir: Path, capsys: Captured):
    def hang_up(_: dict[str, Any]) -> list[str]:
        raise ConnectionAbortedError

    plane = FakeDataPlane(hang_up)
    with plane.on_socket(run_dir / "data.sock") as path:
        assert run_chat(path, None, "hi") == 3
    assert "quarterdeck: the connection broke: " in capsys.readouterr().err


def test_options_and_the_model_are_sent(run_dir: Path):
    plane = FakeDataPlane(lambda _: chat_lines("x"))
    options = ChatOptions(system="Be brief.", max_tokens=5, temperature=0.0)
    with plane.on_socket(run_dir / "data.sock") as path:
        run_chat(path, "other", "hi", options)

    (body,) = plane.requests
    assert body["messages"][0] == {"role": "system", "content": "Be brief."}
    assert (body["model"], body["max_tokens"], body["temperature"]) == ("other", 5, 0.0)


def test_a_conversation_remembers_its_turns_until_it_is_reset(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
):
    plane = FakeDataPlane(lambda body: chat_lines(f"answer {len(body['messages'])}"))
    type_lines(monkeypatch, "one", "", "two", "/reset", "three", "/what", "/quit", "unread")
    with plane.on_socket(run_dir / "data.sock") as path:
        code = run_chat(path, None, None)

    out, err = capsys.readouterr()
    assert (code, out) == (0, "answer 1\nanswer 3\nanswer 1\n")
    assert "commands: /reset" in err
    assert [message["content"] for message in plane.requests[1]["messages"]] == [
        "one",
        "answer 1",
        "two",
    ]


def test_a_failed_turn_is_forgotten_and_the_conversation_goes_on(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
):
    error = 'data: {"error": {"message": "the engine restarted", "code": "engine_restarted"}}'

    def answer(body: dict[str, Any]) -> list[str]:
        is_bad = body["messages"][-1]["content"] == "bad"
        return [chunk({"delta": {"content": "par"}}), error] if is_bad else chat_lines("fine")

    plane = FakeDataPlane(answer)
    type_lines(monkeypatch, "bad", "good")
    with plane.on_socket(run_dir / "data.sock") as path:
        code = run_chat(path, None, None)

    out, err = capsys.readouterr()
    assert (code, out) == (0, "par\nfine\n")
    assert "quarterdeck: the engine restarted" in err
    assert [message["content"] for message in plane.requests[1]["messages"]] == ["good"]


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ([chunk({"delta": {"content": "half"}})], "the answer broke off"),
        (['data: {"error": {"message": "boom"}}', DONE], "boom"),
        (["data: <html>"], "something that is no event"),
    ],
)
def test_an_answer_that_is_not_complete_fails(
    run_dir: Path, capsys: Captured, lines: list[str], reason: str
):
    with FakeDataPlane(lambda _: lines).on_socket(run_dir / "data.sock") as path:
        assert run_chat(path, None, "hi") == 1

    assert reason in capsys.readouterr().err


@pytest.mark.parametrize(("status", "code"), [(401, 3), (403, 3), (400, 1), (503, 1)])
def test_a_refusal_shows_the_servers_words(run_dir: Path, capsys: Captured, status: int, code: int):
    plane = FakeDataPlane(lambda _: [], status=status, error={"message": "no \x1b[31mway"})
    with plane.on_socket(run_dir / "data.sock") as path:
        assert run_chat(path, None, "hi") == code

    assert f"quarterdeck: {status}: no [31mway\n" in capsys.readouterr().err


def test_no_server_says_how_to_start_one(run_dir: Path, capsys: Captured):
    assert run_chat(run_dir / "absent.sock", None, "hi") == 3
    assert "start one with `quarterdeck serve`" in capsys.readouterr().err


def test_no_model_is_an_error(run_dir: Path, capsys: Captured):
    plane = FakeDataPlane(lambda _: [])
    plane.models = []
    with plane.on_socket(run_dir / "data.sock") as path:
        assert run_chat(path, None, "hi") == 1
    assert "names no model" in capsys.readouterr().err


def test_a_model_cannot_command_the_terminal(run_dir: Path, capsys: Captured):
    hostile = "a\x1b]52;c;ZXZpbA==\x07b\x9b2Jc\rd\u202ee\x1b[6n\n\tf"
    with FakeDataPlane(lambda _: chat_lines(hostile)).on_socket(run_dir / "data.sock") as path:
        run_chat(path, None, "hi")

    assert capsys.readouterr().out == "a]52;c;ZXZpbA==b2Jcde[6n\n\tf\n"


def test_scripts_and_emoji_stay_whole():
    text = "می‌خواهم 👩‍👩‍👧 naïve\n"

    assert printable(text) == text


@pytest.mark.process
def test_on_a_terminal_it_prompts_and_ends_with_the_input(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
):
    ours, theirs = pty.openpty()
    os.write(ours, b"hello\n\x04")
    plane = FakeDataPlane(lambda _: chat_lines("hi there"))
    with (
        os.fdopen(theirs, "r") as terminal,
        plane.on_socket(run_dir / "data.sock") as path,
    ):
        monkeypatch.setattr("sys.stdin", terminal)
        code = run_chat(path, None, None)
    os.close(ours)

    out, err = capsys.readouterr()
    assert code == 0
    assert "> hi there\n> " in out
    assert "smollm2 · commands:" in err
