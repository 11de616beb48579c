"""Reads points in time as people write them: `14:22`, `2026-11-29T14:22`, `-30m`. Local time."""

import re
from datetime import datetime, timedelta

from appliance.cli.exits import CliError, Exit

_AGO = re.compile(r"-?(\d+(?:\.\d+)?)\s*(s|m|h|d)(?:\s*ago)?")
_CLOCK = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2}))?")
_MINUTE = re.compile(r"(?:\d{4}-\d{2}-\d{2}[T ])?\d{1,2}:\d{2}")
_HALF_MINUTE = timedelta(seconds=30)
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def parse_moment(text: str, now: datetime | None = None) -> datetime:
    """Return the moment, with a time zone; a time of day is the last one that has been.

    Raises:
        CliError: it is none; the message says what is.
    """
    try:
        return _moment(text.strip(), now or datetime.now().astimezone())
    except (ValueError, OverflowError):
        message = f"{text!r} is no time such as 14:22, 2026-11-29T14:22, -30m or now"
        raise CliError(message, Exit.USAGE) from None


def _moment(text: str, now: datetime) -> datetime:
    if text == "now":
        return now
    if match := _AGO.fullmatch(text):
        return now - timedelta(**{_UNITS[match[2]]: float(match[1])})
    if match := _CLOCK.fullmatch(text):
        hour, minute, second = (int(part or 0) for part in match.groups())
        at = now.replace(hour=hour, minute=minute, second=second, microsecond=0)
        return at if at <= now else at - timedelta(days=1)
    at = datetime.fromisoformat(text)
    return at if at.tzinfo is not None else at.astimezone()


def parse_middle(text: str, now: datetime | None = None) -> datetime:
    """Return the middle of what is meant: of the minute, where no seconds are given.

    Raises:
        CliError: it is no time.
    """
    at = parse_moment(text, now)
    return at + _HALF_MINUTE if _MINUTE.fullmatch(text.strip()) else at
