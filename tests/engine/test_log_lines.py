"""One event is one line, with its request's ids and without its secrets."""

import asyncio
import json
import logging
import subprocess
import sys
from typing import Any

import pytest

from engine.log_lines import (
    MAX_EXCEPTION_CHARS,
    MAX_LINE_BYTES,
    LineFormatter,
    about,
    parse_line,
    plain_text,
)

REQUEST = "req-0123456789abcdef01234567"
OTHER = "req-aaaaaaaaaaaaaaaaaaaaaaaa"
TRACE = "0af7651916cd43dd8448eb211c80319c"
FORGERY = "x\n2026-01-01 error root: forged\r\x1b[2J\x9b\u202e\u2028"


def record(text: str, *args: object, name: str = "a.b", error: BaseException | None = None) -> Any:
    info = None if error is None else (type(error), error, error.__traceback__)
    return logging.LogRecord(name, logging.WARNING, "f.py", 1, text, args, info)


def fields(log_record: logging.LogRecord) -> dict[str, Any]:
    line = LineFormatter("e0", 3, "json").format(log_record)
    assert "\n" not in line
    found = parse_line(line)
    assert found is not None
    return found


def caught(make: Any) -> BaseException:
    try:
        make()
    except Exception as error:  # noqa: BLE001 - whatever it is
        return error
    raise AssertionError


def test_a_line_says_when_who_and_what():
    found = fields(record("loaded %d of %s", 3, "weights"))

    assert found["text"] == "loaded 3 of weights"
    assert found | {"at": None} == {
        "at": None, "level": "warning", "logger": "a.b", "process": "e0", "epoch": 3,
        "text": "loaded 3 of weights",
    }  # fmt: skip
    assert found["at"].endswith("Z")


def test_nothing_in_a_text_can_begin_a_line_or_drive_a_terminal():
    found = fields(record("from %s", FORGERY))
    assert found["text"] == (r"from x\n2026-01-01 error root: forged\r\x1b[2J\x9b\u202e\u2028")
    text = LineFormatter("e0", 3, "text").format(record("from %s", FORGERY))
    assert text.count("\n") == 0
    assert text.isprintable()


def test_a_lone_surrogate_can_be_written():
    assert fields(record("\ud800"))["text"] == r"\ud800"


def test_a_traceback_is_marked_so_that_it_cannot_be_taken_for_lines():
    error = caught(lambda: int("x\nforged"))
    text = LineFormatter("e0", 3, "text").format(record("failed", error=error))

    first, *rest = text.split("\n")
    assert first.endswith("a.b: failed")
    assert len(rest) > 3
    assert all(line.startswith("  | ") for line in rest)
    assert fields(record("failed", error=error))["exception"].startswith("Traceback")


def test_lines_about_a_request_carry_its_ids_in_every_task_that_it_starts():
    async def work() -> list[dict[str, Any]]:
        with about(REQUEST, TRACE):
            async with asyncio.TaskGroup() as tasks:
                inner = tasks.create_task(asyncio.to_thread(fields, record("in a thread")))
            here = fields(record("here"))
        return [inner.result(), here, fields(record("outside"))]

    inner, here, outside = asyncio.run(work())
    for found in (inner, here):
        assert (found["request_id"], found["trace_id"]) == (REQUEST, TRACE)
    assert "request_id" not in outside


def test_a_line_that_names_one_request_is_about_it():
    assert fields(record("%s-1-r2 goes back", REQUEST))["request_id"] == REQUEST
    assert "request_id" not in fields(record("%s and %s", REQUEST, OTHER))


def test_messages_of_exceptions_are_withheld_where_they_may_quote_a_request():
    def fail() -> None:
        try:
            int("CANARY prompt")
        except ValueError as cause:
            raise RuntimeError("CANARY again") from cause

    error = ExceptionGroup("CANARY group", [caught(fail)])  # type: ignore[type-var]
    plain = fields(record("failed", error=error))["exception"]
    assert plain.count("CANARY") == 5, "three messages, and two lines of this file"
    with about(REQUEST):
        withheld = fields(record("failed", error=error))["exception"]
    by_name = fields(record("failed", name="uvicorn.error", error=error))["exception"]

    for text in (withheld, by_name):
        messages = [line for line in text.split("\n") if "withheld" in line]
        assert [line.strip(" |").split(":")[0] for line in messages] == [
            "ExceptionGroup", "ValueError", "RuntimeError",
        ]  # fmt: skip
        assert "direct cause" in text
        assert not any("CANARY" in line for line in messages)


def test_an_exception_that_cannot_say_itself_takes_no_line_with_it():
    class BrokenError(Exception):
        def __str__(self) -> str:
            raise ValueError

    assert "cannot be made" in fields(record("failed", error=BrokenError()))["exception"]


def test_the_longest_line_fits_into_what_is_read():
    error = caught(lambda: (_ for _ in ()).throw(ValueError("\u9999" * 50_000)))
    line = LineFormatter("e0", 3, "json").format(record("\u9999" * 50_000, error=error))

    assert len(line.encode()) < MAX_LINE_BYTES
    assert len(json.loads(line)["exception"]) <= MAX_EXCEPTION_CHARS
    assert "characters" in json.loads(line)["exception"]


def test_a_childs_line_is_told_by_its_last_words():
    error = caught(lambda: int("x"))
    line = LineFormatter("e0", 3, "json").format(record("it ends", error=error))

    assert plain_text(line) == "it ends: ValueError: invalid literal for int() with base 10: 'x'"
    assert plain_text("Segmentation fault") == "Segmentation fault"
    assert parse_line('{"at":"1"}') is None
    assert parse_line('{"at":"') is None


@pytest.mark.process
def test_a_process_logs_third_parties_and_warnings_in_the_same_way():
    program = """
import logging, sys, warnings
logging.getLogger("uvicorn.error").addHandler(logging.StreamHandler(sys.stdout))
logging.getLogger("uvicorn.error").propagate = False
from engine.log_lines import configure_logging
configure_logging("e0", 2, "info", "json")
logging.getLogger("uvicorn.error").error("junk %s", "a\\nb")
logging.getLogger("x").debug("not shown")
warnings.warn("old")
configure_logging("e0", 2, "warning", "text")
logging.getLogger("x").info("not shown")
logging.getLogger("x").warning("shown")
"""
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    assert ran.stdout == ""
    junk, old, shown = ran.stderr.splitlines()
    assert json.loads(junk)["text"] == r"junk a\nb"
    assert json.loads(old)["logger"] == "py.warnings"
    assert shown.endswith("warning e0 x: shown")
