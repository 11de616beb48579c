"""A text to scroll through: stacks of an engine, a profile and its files."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from appliance.supervisor.admin.schemas import ProfileRow, StackDump
from dashboard.view.lines import BAD, BOLD, DIM, GOOD, Line, Piece, line
from dashboard.view.text import clean, clock, size

VIEWER: Final = "https://ui.perfetto.dev"
_LINE_LIMIT: Final = 1000


@dataclass(frozen=True, slots=True)
class Page:
    """A title and lines."""

    title: str
    lines: Sequence[Line]
    subtitle: str = ""
    is_final: bool = True
    """Nothing on it will change."""


def stacks_page(dump: StackDump) -> Page:
    """The dump as it came, a line each."""
    engine = clean(dump.engine)
    return Page(
        f"stacks of {engine} · pid {dump.pid}",
        [_stack_line(text) for text in dump.text.splitlines()] or [_none("no thread was found")],
        f"by {dump.tool}",
    )


def _stack_line(text: str) -> Line:
    """Threads stand out; the indentation of frames is kept, `clean` alone would strip it."""
    indent = " " * (len(text) - len(text.lstrip()))
    body = clean(text, _LINE_LIMIT)
    return line(Piece(f" {indent}{body}", "" if indent else BOLD))


def _none(text: str) -> Line:
    return line(Piece(f" {text}", DIM))


def profile_page(row: ProfileRow) -> Page:
    """What was recorded, its files, and how to look at them."""
    return Page(
        f"profile {clean(row.id)} of {clean(row.engine)}",
        [*_profile_facts(row), (), *_files(row), (), *_how_to_open(row)],
        row.state,
        is_final=row.state != "running",
    )


def _profile_facts(row: ProfileRow) -> list[Line]:
    steps = "" if row.steps is None else f"{row.steps} steps"
    which = "" if row.last_step is None else f", steps {row.first_step} to {row.last_step}"
    lines = [
        line(Piece(" state    ", DIM), Piece(row.state, GOOD if row.state == "done" else BOLD)),
        line(Piece(" engine   ", DIM), f"{clean(row.engine)}, epoch {row.epoch}"),
        line(Piece(" recorded ", DIM), f"{steps}{which}" or "until it was stopped"),
        line(Piece(" begun    ", DIM), f"{clock(row.created_at)} by {clean(row.actor)}"),
    ]
    if row.error:
        lines.append(line(Piece(" error    ", DIM), Piece(clean(row.error), BAD)))
    return lines


def _files(row: ProfileRow) -> list[Line]:
    if not row.files:
        return [_none("no files" if row.state != "running" else "its files come when it ends")]
    return [
        line(
            Piece(f" {size(file.num_bytes):>8}  ", DIM),
            f"{clean(file.name)}  ",
            Piece(file.kind, DIM),
        )
        for file in row.files
    ]


def _how_to_open(row: ProfileRow) -> list[Line]:
    if row.state != "done":
        return []
    merged = next((file.name for file in row.files if file.kind == "merged"), "the trace")
    return [
        line(" Fetch the files:  ", Piece(f"quarterdeck profile get {clean(row.id)}", BOLD)),
        line(" Open in a browser: ", Piece(VIEWER, BOLD), f" and drop {clean(merged)} on it."),
        line(
            Piece(" It shows the steps, the requests in them and the operators, on one axis.", DIM)
        ),
    ]
