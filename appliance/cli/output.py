"""How commands print: tables for people, JSON for programs; data on stdout, talk on stderr."""

import json
import os
import sys
import unicodedata
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Any, TextIO

_HIDDEN_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})
_UNITS = ("B", "kB", "MB", "GB", "TB")
_STEP = 1000
_MINUTE_S, _HOUR_S, _DAY_S = 60, 3600, 86400


class Output(StrEnum):
    """`-o`."""

    TABLE = "table"
    JSON = "json"


def printable(text: str) -> str:
    """Return `text` without what could drive a terminal or hide: controls, bidi marks, newlines."""
    return "".join("�" if unicodedata.category(c) in _HIDDEN_CATEGORIES else c for c in text)


def say(text: str) -> None:
    """Talk to the person, on stderr."""
    print(text, file=sys.stderr, flush=True)


def print_json(value: Any) -> None:
    """Print one JSON document."""
    print(json.dumps(value, indent=2, ensure_ascii=True, default=str))


def print_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print columns that are as wide as their content; the last may be of any length."""
    cleaned = [header, *([printable(cell) for cell in row] for row in rows)]
    widths = [max(len(row[column]) for row in cleaned) for column in range(len(header))]
    for row in cleaned:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print("  ".join(cells).rstrip())


def has_colour(stream: TextIO) -> bool:
    """Whether colours are welcome: a terminal that is not dumb, and no `NO_COLOR`."""
    environ = os.environ
    return stream.isatty() and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"


def size(num_bytes: int | None) -> str:
    """Return bytes as `380 MB`."""
    if num_bytes is None:
        return "-"
    amount = float(num_bytes)
    for unit in _UNITS[:-1]:
        if abs(amount) < _STEP:
            return f"{amount:.0f} {unit}" if unit in {"B", "kB", "MB"} else f"{amount:.1f} {unit}"
        amount /= _STEP
    return f"{amount:.1f} {_UNITS[-1]}"


def span_of(seconds: float) -> str:
    """Return a duration of people's lengths as `3 m`, `41 s`, `2 d`."""
    if seconds < _MINUTE_S:
        return f"{seconds:.0f} s"
    if seconds < _HOUR_S:
        return f"{seconds / _MINUTE_S:.0f} m"
    if seconds < _DAY_S:
        return f"{seconds / _HOUR_S:.0f} h"
    return f"{seconds / _DAY_S:.0f} d"


def milliseconds(value: float | None) -> str:
    """Return a latency as `412 ms`."""
    return "-" if value is None else f"{value:.0f} ms"
