"""Text for the screen: foreign text made harmless, numbers made short."""

import unicodedata
from datetime import datetime
from typing import Final

NOTHING: Final = "\N{EN DASH}"
_EIGHTHS: Final = " ▏▎▍▌▋▊▉"
_UNSAFE: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn"})
_BREAKS: Final = frozenset({"Zl", "Zp"})
_KILO: Final = 1000.0
_MINUTE_S: Final = 60.0
_HOUR_S: Final = 3600.0
_DAY_S: Final = 86400.0
_ID_DIGITS: Final = 8
_TEN: Final = 10.0


def clean(text: str, limit: int = 400) -> str:
    """Return `text` without control, format and bidi characters, on one line.

    Model names, error details and ids come from outside; printed raw they could move the cursor,
    write the clipboard or forge a line.
    """
    return "".join(_clean_one(character) for character in text[:limit]).strip()


def _clean_one(character: str) -> str:
    if character in "\t\r\n":
        return " "
    category = unicodedata.category(character)
    if category in _BREAKS:
        return " "
    return "" if category in _UNSAFE else character


def count(value: float) -> str:
    """`7`, `1.2k`, `31k`, `4.0M`."""
    if value < _KILO:
        return f"{value:.0f}"
    for unit in ("k", "M", "G"):
        value /= _KILO
        if value < _TEN:
            return f"{value:.1f}{unit}"
        if value < _KILO or unit == "G":
            return f"{value:.0f}{unit}"
    return f"{value:.0f}"


def rate(value: float | None) -> str:
    """A number per second: one decimal below 100."""
    if value is None:
        return NOTHING
    return f"{value:.1f}" if value < _KILO / _TEN else count(value)


def size(value: float | None) -> str:
    """Bytes in decimal units: `512 MB`, `4.1 GB`."""
    if value is None:
        return NOTHING
    for unit in ("B", "kB", "MB", "GB"):
        if value < _KILO:
            digits = 1 if unit == "GB" or (value < _TEN and unit != "B") else 0
            return f"{value:.{digits}f} {unit}"
        value /= _KILO
    return f"{value:.1f} TB"


def milliseconds(value: float | None) -> str:
    """`0.3ms`, `88ms`, `4.21s`, `31s`."""
    if value is None:
        return NOTHING
    if value < _TEN:
        return f"{value:.1f}ms"
    if value < _KILO:
        return f"{value:.0f}ms"
    seconds = value / _KILO
    return f"{seconds:.2f}s" if seconds < _TEN else age(seconds)


def age(seconds: float | None) -> str:
    """A time span in at most five characters: `0.6s`, `31s`, `4m12`, `3h04`, `3d04h`."""
    if seconds is None:
        return NOTHING
    seconds = max(0.0, seconds)
    if seconds < _MINUTE_S:
        return f"{seconds:.{1 if seconds < _TEN else 0}f}s"
    if seconds < _HOUR_S:
        return f"{int(seconds // _MINUTE_S)}m{int(seconds % _MINUTE_S):02d}"
    if seconds < _DAY_S:
        return f"{int(seconds // _HOUR_S)}h{int(seconds % _HOUR_S // _MINUTE_S):02d}"
    return f"{int(seconds // _DAY_S)}d{int(seconds % _DAY_S // _HOUR_S):02d}h"


def clock(at: datetime) -> str:
    """Local wall-clock time."""
    return at.astimezone().strftime("%H:%M:%S")


def restarts(number: int) -> str:
    """`  2 restarts`, or nothing."""
    return f"  {number} restart{'' if number == 1 else 's'}" if number else ""


def short_id(request_id: str) -> str:
    """`req-` and the first eight digits: enough to tell rows apart."""
    request_id = clean(request_id)
    head, dash, digits = request_id.partition("-")
    if not dash:
        return request_id[: _ID_DIGITS + 4]
    return f"{head}-{digits[:_ID_DIGITS]}"


def meter(ratio: float, width: int) -> str:
    """A horizontal bar of `width` cells in steps of an eighth."""
    eighths = round(min(1.0, max(0.0, ratio)) * width * 8)
    full, part = divmod(eighths, 8)
    return ("█" * full + (_EIGHTHS[part] if part else "")).ljust(width)
