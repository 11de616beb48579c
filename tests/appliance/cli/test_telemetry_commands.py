"""`telemetry` and `events` against an appliance in memory."""

import json

import pytest

from appliance.cli.exits import Exit
from tests.appliance.cli.conftest import Appliance, Run
from tests.appliance.supervisor.admin.in_memory_telemetry import journal_event


def test_telemetry_shows_what_holds_and_what_was_lost(appliance: Appliance, run: Run):
    shown = run("telemetry")

    assert shown.code == 0
    assert "record              on" in shown.out
    assert "kept always         errors, aborts, preempted, SLO breaches" in shown.out
    assert "collector           none" in shown.out
    assert "lost records        supervisor trace_store: 3" in shown.out
    assert json.loads(run("telemetry", "-o", "json").out)["stored_spans"] == 12


def test_telemetry_changes_only_what_is_named(appliance: Appliance, run: Run):
    changed = run("telemetry", "--no-record", "--ratio", "0.25", "--slowest", "7", "--content")

    assert changed.code == 0
    assert "ratio               0.25" in changed.out
    ((change, actor),) = appliance.hub.changes
    assert actor == "local"
    assert change.model_dump(exclude_none=True) == {
        "recording": False,
        "trace_ratio": 0.25,
        "slowest_per_minute": 7,
        "content": True,
    }


def test_export_without_a_collector_is_refused_with_a_hint(appliance: Appliance, run: Run):
    refused = run("telemetry", "--export")

    assert refused.code == Exit.USAGE
    assert "there is no collector" in refused.err
    assert "Configure one." in refused.err


@pytest.mark.parametrize("option", [("--ratio", "2"), ("--slowest", "-1")])
def test_what_is_out_of_bounds_is_a_usage_error(appliance: Appliance, run: Run, option):
    assert run("telemetry", *option).code == Exit.USAGE
    assert appliance.hub.changes == []


def test_events_are_asked_for_by_everything_and_printed_oldest_first(
    appliance: Appliance, run: Run
):
    shown = run(
        "events", "--since", "2026-01-02T03:00:00Z", "--until", "2026-01-02T04:00:00Z",
        "--level", "warning", "--kind", "engine.", "--limit", "9",
    )  # fmt: skip

    (query,) = appliance.hub.event_queries
    assert (query.min_level, query.kind, query.limit) == ("warning", "engine.", 9)
    assert query.since is not None
    assert query.since.isoformat() == "2026-01-02T03:00:00+00:00"
    lines = shown.out.splitlines()
    assert [line.split(": ")[-1] for line in lines] == ["event 1", "event 2"]
    assert "warning engine.died" in lines[1]


def test_following_prints_what_comes_and_what_was_missed_once(appliance: Appliance, run: Run):
    for number, kind, level in (
        (2, "engine.died", "warning"),
        (3, "a.b", "error"),
        (4, "c", "info"),
    ):
        event = journal_event(number, kind, level)
        appliance.hub.feed.put_nowait((number, "event", event.model_dump_json()))
    appliance.hub.feed.put_nowait((9, "stats", "{}"))
    appliance.hub.feed.put_nowait(None)

    shown = run("events", "-f", "--level", "warning", "-o", "json")

    printed = [json.loads(line)["id"] for line in shown.out.splitlines()]
    assert printed == [1, 2, 3]
    assert "ended the stream" in shown.err


def test_following_has_no_end(appliance: Appliance, run: Run):
    assert run("events", "-f", "--until", "now").code == Exit.USAGE
