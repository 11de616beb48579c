"""`logs`: of a running appliance by its API, of one that has ended by its file."""

import json
from pathlib import Path

import pytest

from appliance.supervisor.log_book import LogBook
from tests.appliance.cli.conftest import Appliance, Run

REQUEST = "req-0123456789abcdef01234567"
AT = "2026-01-02T03:04:05.678Z"


def write_log(directory: Path, *texts: str) -> None:
    book = LogBook(directory)
    for text in texts:
        line = {"at": AT, "level": "warning", "process": "e0", "text": text, "logger": "a.b"}
        book.take("e0", json.dumps(line))
    book.close()


def test_lines_are_printed_one_by_one_with_what_they_are_about(run: Run, appliance: Appliance):
    appliance.insight.logs.add("hello \x1b[2J", level="error", logger="a.b", request_id=REQUEST)
    appliance.insight.logs.add("failed", exception="Traceback\nOSError: x")

    lines = run("logs").out.splitlines()

    assert lines[0].endswith(f"error   e0 a.b: hello �[2J [{REQUEST}]")
    assert lines[1].endswith("info    e0: failed")
    assert lines[2:] == ["  | Traceback", "  | OSError: x"]


def test_filters_go_to_the_appliance(run: Run, appliance: Appliance):
    run("logs", "e0", "--level", "warning", "--grep", "x", "-n", "7")

    assert appliance.insight.logs.asked == [
        {"process": "e0", "min_level": "warning", "after_id": None, "limit": 7, "contains": "x"}
    ]
    assert run("logs", "--level", "loud").code == 2


def test_json_is_one_document(run: Run, appliance: Appliance):
    appliance.insight.logs.add("hello")
    (line,) = run("logs", "-o", "json").json
    assert (line["text"], line["process"]) == ("hello", "e0")


def test_following_goes_on_after_the_last_line_until_interrupted(
    run: Run, appliance: Appliance, monkeypatch
):
    appliance.insight.logs.add("one")
    appliance.insight.logs.add("two")
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) > 1:
            raise KeyboardInterrupt
        appliance.insight.logs.add("three")

    monkeypatch.setattr("appliance.cli.log_commands.time.sleep", pause)
    result = run("logs", "-f", "-n", "1", "-o", "json")

    assert result.code == 0
    assert [json.loads(line)["text"] for line in result.out.splitlines()] == ["two", "three"]
    assert [asked["after_id"] for asked in appliance.insight.logs.asked] == [None, 2, 2]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # httpcore's socket
def test_a_follower_waits_for_an_appliance_that_restarts(
    run: Run, appliance: Appliance, monkeypatch
):
    appliance.insight.logs.add("one")
    appliance.insight.logs.add("two")

    def lose_the_log() -> None:
        appliance.insight.logs.kept.clear()
        appliance.insight.logs.add("one of another log")
        appliance.come_back()

    acts = [appliance.go_away, appliance.come_back, lambda: appliance.insight.logs.add("three"),
            appliance.go_away, lose_the_log]  # fmt: skip

    def pause(_: float) -> None:
        if not acts:
            raise KeyboardInterrupt
        acts.pop(0)()

    monkeypatch.setattr("appliance.cli.log_commands.time.sleep", pause)
    result = run("logs", "-f", "-n", "1", "-o", "json")

    assert result.code == 0
    said = [json.loads(line)["text"] for line in result.out.splitlines()]
    assert said == ["two", "three", "one of another log"]
    assert result.err.count("waiting for it") == result.err.count("is back") == 2


def test_without_an_appliance_the_file_is_read(run: Run, tmp_path: Path):
    assert run("logs").code == 3
    write_log(tmp_path / "state" / "logs", "one", "two", "three")
    result = run("logs", "e0", "-n", "2")

    assert [line.rpartition(": ")[2] for line in result.out.splitlines()] == ["two", "three"]
    assert "no appliance is running" in result.err
    assert [line["text"] for line in run("logs", "--grep", "ONE", "-o", "json").json] == ["one"]
    assert run("logs", "-f").code == 3
