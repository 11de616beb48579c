"""What processes wrote: attributed, kept together, found again, on a disk that may be full."""

import io
import itertools
import json
import resource
import signal
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from appliance.supervisor.log_book import LogBook, kept_lines
from appliance.supervisor.log_capture import MAX_LINES_PER_S, Fields, LineCapture
from appliance.supervisor.log_file import FILES, LOG_FILE, LogFile, all_lines
from engine.log_lines import MAX_TEXT_CHARS
from engine.redaction import Redactor

AT = "2026-01-02T03:04:05.678Z"
REQUEST = "req-0123456789abcdef01234567"
KEY = "qd_0a1b2c3d4e_AbCdEf123456"
TRACEBACK = (
    "Traceback (most recent call last):",
    '  File "x.py", line 1, in <module>',
    "    boom()",
    "",
    "ValueError: no such thing",
)


def child_line(text: str, **fields: object) -> str:
    line = {"at": AT, "level": "info", "logger": "a.b", "process": "e0", "epoch": 4, "text": text}
    return json.dumps(line | fields)


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def given() -> list[Fields]:
    return []


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def capture(given: list[Fields], clock: Clock) -> LineCapture:
    return LineCapture(given.append, Redactor(["exact-secret"]), clock)


OpenBook = Callable[..., LogBook]


@pytest.fixture
def open_book(tmp_path: Path) -> Iterator[OpenBook]:
    books: list[LogBook] = []

    def open_book(stream: io.StringIO | None = None, **options: object) -> LogBook:
        book = LogBook(tmp_path, stream=stream or io.StringIO(), **options)  # type: ignore[arg-type]
        books.append(book)
        return book

    yield open_book
    for book in books:
        book.close()


def texts(book: LogBook, **wanted: object) -> list[str]:
    asked = {"process": None, "min_level": None, "after_id": None, "limit": 10} | wanted
    return [line.text for line in book.lines(**asked)]  # type: ignore[arg-type]


# ------------------------------------------------------------ capture


def test_a_childs_json_line_is_taken_at_its_word(capture: LineCapture, given: list[Fields]):
    capture.take("e0", child_line("hello", request_id=REQUEST, trace_id="a" * 32, other="x"))

    assert given == [
        {
            "at": AT, "level": "info", "process": "e0", "epoch": 4, "text": "hello",
            "logger": "a.b", "request_id": REQUEST, "trace_id": "a" * 32,
        }
    ]  # fmt: skip


def test_a_child_can_speak_only_for_itself(capture: LineCapture, given: list[Fields]):
    line = child_line("x\ny", process="supervisor", level="BOSS", request_id="\n", epoch="9")
    capture.started("e0", 7)
    capture.take("e0", line)
    capture.take("e0", child_line("when", at="yesterday"))

    assert given[0]["process"] == "e0"
    assert (given[0]["level"], given[0]["epoch"], given[0]["text"]) == ("warning", 7, r"x\ny")
    assert "request_id" not in given[0]
    assert given[1]["at"] != "yesterday"


@pytest.mark.parametrize(
    ("line", "level"),
    [
        ("[W libtorch.cpp:12] slow path", "warning"),
        ("free(): invalid pointer, abort", "error"),
        ("\x1b[31mError:\x1b[0m x", "error"),
        ('{"at":"2026', "warning"),
    ],
)
def test_what_a_library_writes_is_attributed_to_its_process(
    capture: LineCapture, given: list[Fields], line: str, level: str
):
    capture.started("e0", 7)
    capture.take("e0", line)

    assert [(f["process"], f["epoch"], f["level"]) for f in given] == [("e0", 7, level)]
    assert given[0]["text"].isprintable()


def test_a_traceback_is_one_entry_with_its_last_line_as_text(
    capture: LineCapture, given: list[Fields], clock: Clock
):
    for line in TRACEBACK:
        capture.take("e0", line)
        capture.take("gateway-0", "beside it")
    capture.flush()
    assert [fields["process"] for fields in given] == ["gateway-0"] * 5
    clock.now_s += 0.2
    capture.flush()

    assert given[-1]["text"] == "ValueError: no such thing"
    assert (given[-1]["process"], given[-1]["level"]) == ("e0", "error")
    assert given[-1]["exception"].split("\n") == list(TRACEBACK)


def test_a_dump_of_threads_is_told_by_its_first_line(capture: LineCapture, given: list[Fields]):
    for line in ("Fatal Python error: Aborted", "", '  File "x.py", line 1 in f', "Extension"):
        capture.take("e0", line)
    capture.flush(all_of_them=True)
    assert [fields["text"] for fields in given] == ["Fatal Python error: Aborted"]


def test_a_traceback_ends_where_the_process_logs_again(capture: LineCapture, given: list[Fields]):
    for line in (*TRACEBACK, child_line("after")):
        capture.take("e0", line)
    assert [fields["text"] for fields in given] == ["ValueError: no such thing", "after"]


def test_secrets_of_a_child_go_nowhere(capture: LineCapture, given: list[Fields], clock: Clock):
    capture.take("e0", f"key {KEY} exact-secret")
    capture.take("e0", child_line(f"key {KEY}", exception=f"Traceback\nexact-secret {KEY}"))
    for line in (*TRACEBACK, f"KeyError: {KEY}"):
        capture.take("e0", line)
    capture.flush(all_of_them=True)

    shown = json.dumps(given)
    assert "qd_***" in shown
    assert KEY not in shown
    assert "exact-secret" not in shown


def test_junk_that_looks_like_json_or_never_ends_is_a_line_like_any_other(
    capture: LineCapture, given: list[Fields]
):
    capture.take("e0", '{"at":' + "[" * 60_000)
    capture.take("e0", "Traceback (most recent call last):")
    for _ in range(3):
        capture.take("e0", "x" * 100_000)
    capture.flush(all_of_them=True)

    assert [fields["text"][:7] for fields in given] == ['{"at":[', "x" * 7]
    assert given[1]["exception"].count("x") == 3 * MAX_TEXT_CHARS


def test_a_flood_is_cut_and_counted(capture: LineCapture, given: list[Fields], clock: Clock):
    for number in range(MAX_LINES_PER_S + 50):
        capture.take("e0", f"line {number}")
    capture.take("gateway-0", "is heard")
    clock.now_s += 1.1
    capture.flush()

    assert len(given) == MAX_LINES_PER_S + 2
    assert given[-1]["text"] == "50 lines in a second were dropped"


# ------------------------------------------------------------ book


def test_lines_are_found_by_process_level_and_text(open_book: OpenBook):
    book = open_book()
    book.take("e0", child_line("one"))
    book.take("gateway-0", child_line("two", level="error", exception="Traceback\nOSError: Three"))
    book.take("e0", child_line("four", level="warning", request_id=REQUEST))

    assert texts(book) == ["one", "two", "four"]
    assert texts(book, process="e0") == ["one", "four"]
    assert texts(book, min_level="warning") == ["two", "four"]
    assert texts(book, contains="three") == ["two"]
    assert texts(book, contains=REQUEST) == ["four"]
    assert texts(book, limit=2) == ["two", "four"]


def test_a_follower_misses_nothing(open_book: OpenBook):
    book = open_book()
    for number in range(5):
        book.take("e0", child_line(str(number)))
    first = book.lines(process=None, min_level=None, after_id=None, limit=1)[0]
    assert first.text == "4"

    assert texts(book, after_id=first.id - 3, limit=2) == ["2", "3"], "the next ones come later"
    assert texts(book, after_id=first.id) == []


def test_people_and_programs_see_one_line_per_event(open_book: OpenBook):
    text, lines = io.StringIO(), io.StringIO()
    for stream, format_ in ((text, "text"), (lines, "json")):
        book = open_book(stream, format=format_)
        book.take("e0", child_line("a\nb", request_id=REQUEST))
        book.close()

    assert text.getvalue() == f"{AT} info    e0 a.b: a\\nb [{REQUEST}]\n"
    assert json.loads(lines.getvalue())["request_id"] == REQUEST


def test_the_book_goes_on_where_the_last_run_ended(open_book: OpenBook, tmp_path: Path):
    book = open_book()
    book.take("e0", child_line("before"))
    book.close()
    book = open_book()
    book.take("e0", child_line("after"))

    found = book.lines(process=None, min_level=None, after_id=None, limit=10)
    assert [(line.id, line.text) for line in found] == [(1, "before"), (2, "after")]
    book.close()
    kept = kept_lines(tmp_path, process="e0", min_level="info", limit=5)
    assert [line.text for line in kept] == ["before", "after"]


def test_lines_are_counted_by_process_and_level(open_book: OpenBook):
    counts: list[tuple[str, str, int]] = []
    book = open_book()
    book.on_lines = lambda *count: counts.append(count)
    for level in ("info", "error", "info"):
        book.take("e0", child_line("x", level=level))
    book.tick()
    book.tick()

    assert sorted(counts) == [("e0", "error", 1), ("e0", "info", 2)]


def test_nobody_reads_the_terminal_any_more(open_book: OpenBook):
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    book = open_book(Gone())
    book.take("e0", child_line("x"))
    book.close()
    assert texts(book) == ["x"]


# ------------------------------------------------------------ file


def test_the_file_is_private_and_rotates(tmp_path: Path):
    file = LogFile(tmp_path / "logs", file_bytes=1000)
    for number in range(100):
        assert file.write([child_line(f"{number:03d}")]) == 0
    file.close()

    paths = sorted((tmp_path / "logs").iterdir())
    assert [path.name for path in paths] == [
        LOG_FILE, *(f"{LOG_FILE}.{number}" for number in range(1, FILES)),
    ]  # fmt: skip
    assert all(path.stat().st_size <= 1000 for path in paths)
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in paths)
    assert stat.S_IMODE((tmp_path / "logs").stat().st_mode) == 0o700
    numbers = [int(fields["text"]) for fields in all_lines(tmp_path / "logs")]
    assert numbers == list(range(numbers[0], 100)), "the newest ones, in order"


@pytest.fixture
def small_disk() -> Iterator[Callable[[int], None]]:
    """Let files grow to a size and no further, as a full disk does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    yield lambda num_bytes: resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, handler)


def test_a_full_disk_costs_lines_and_they_are_counted(
    tmp_path: Path, small_disk: Callable[[int], None]
):
    file = LogFile(tmp_path)
    line = child_line("x" * 50)
    assert file.write([line]) == 0
    small_disk(2 * len(line))
    assert file.write([line, line]) == 2, "the first is cut in the middle, the second not tried"
    small_disk(1 << 20)
    assert file.write([line]) == 0
    file.close()

    assert [fields["text"] for fields in all_lines(tmp_path)] == ["x" * 50] * 2


def test_junk_in_the_file_is_passed_over(tmp_path: Path):
    good = child_line("good")
    junk = itertools.chain(["{", "[]", '{"at":"x"}', "\udcff"], [good])
    (tmp_path / LOG_FILE).write_bytes(
        "\n".join(junk).encode(errors="surrogateescape") + b"\n" + good.encode()[:20]
    )
    assert [fields["text"] for fields in all_lines(tmp_path)] == ["good"]
