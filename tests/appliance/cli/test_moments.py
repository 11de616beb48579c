"""Points in time as people write them."""

from datetime import UTC, datetime, timedelta

import pytest

from appliance.cli.exits import CliError, Exit
from appliance.cli.moments import parse_middle, parse_moment

NOW = datetime(2026, 11, 29, 15, 30, 10, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("14:22", NOW.replace(hour=14, minute=22, second=0)),
        ("14:22:05", NOW.replace(hour=14, minute=22, second=5)),
        ("16:00", NOW.replace(day=28, hour=16, minute=0, second=0)),
        ("-5m", NOW - timedelta(minutes=5)),
        ("90s ago", NOW - timedelta(seconds=90)),
        ("1.5h", NOW - timedelta(hours=1.5)),
        ("2026-11-29T14:22:00Z", NOW.replace(hour=14, minute=22, second=0)),
        ("now", NOW),
    ],
)
def test_a_moment_is_read(text, expected):
    assert parse_moment(text, NOW) == expected


def test_a_moment_without_zone_is_local():
    at = parse_moment("2026-11-29T14:22", NOW)

    assert at.tzinfo is not None
    assert at == datetime(2026, 11, 29, 14, 22).astimezone()


def test_a_minute_that_is_asked_about_is_that_minute():
    for text in ("14:22", "2026-11-29T14:22"):
        assert parse_middle(text, NOW) == parse_moment(text, NOW) + timedelta(seconds=30)
    for text in ("14:22:05", "-5m", "2026-11-29T14:22:05"):
        assert parse_middle(text, NOW) == parse_moment(text, NOW)


@pytest.mark.parametrize(
    "text", ["", "25:00", "yesterday", "5", "14:61", "-99999999999d", "0001-01-01"]
)
def test_what_is_no_moment_is_a_usage_error_that_names_some(text):
    with pytest.raises(CliError, match="14:22") as caught:
        parse_moment(text, NOW)

    assert caught.value.code is Exit.USAGE
