"""Reads points in time as people write them: `14:22`, `2026-11-29T14:22`, `-30m`. Local time."""

import re
from datetime import datetime, timedelta

from appliance.cli.exits import CliError, Exit

_AGO = re.compile(r"-?(\d+(?:\.\d+)?)\s*(s|m|h|d)(?:\s*ago)?")
_CLOCK = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2}))?")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def parse_moment(text: str, now: datetime | None = None) -> datetime:
    """Return the moment, with a time zone; a time of day is the last one that has been.

    Raises:
        CliError: it is none; the message says what is.
    """
    now = now or datetime.now().astimezone()
    stripped = text.strip()
    if stripped == "now":
        return now
    if match := _AGO.fullmatch(stripped):
        return now - timedelta(**{_UNITS[match[2]]: float(match[1])})
    try:
        if match := _CLOCK.fullmatch(stripped):
            hour, minute, second = (int(part or 0) for part in match.groups())
            at = now.replace(hour=hour, minute=minute, second=second, microsecond=0)
            return at if at <= now else at - timedelta(days=1)
        at = datetime.fromisoformat(stripped)
    except ValueError:
        message = f"{text!r} is no time such as 14:22, 2026-11-29T14:22, -30m or now"
        raise CliError(message, Exit.USAGE) from None
    return at if at.tzinfo is not None else at.astimezone()
