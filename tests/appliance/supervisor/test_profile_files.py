"""The merged profile is torch's own file with more events on its axis; the store is bounded."""

import gzip
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from appliance.supervisor.admin.ports import NotFoundError
from appliance.supervisor.admin.schemas import ProfileRow, RequestRow, Span, Trace
from appliance.supervisor.profile_events import (
    REQUESTS_PID,
    STEPS_PID,
    lanes_of,
    request_events,
    step_events,
)
from appliance.supervisor.profile_merge import Axis, MergeError, merge
from appliance.supervisor.profile_store import CUT_SHORT, ProfileStore
from engine.wire.flight import RecordedStep

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
BASE_NS = 1_790_857_026_000_000_000
OFFSET_NS = 1_795_978_946_440_485_521
AXIS = Axis(BASE_NS, OFFSET_NS)


def torch_file(path: Path, num_events: int = 3) -> Path:
    """What torch writes, in its own layout."""
    events = ",".join(
        f'\n  {{ "ph": "X", "name": "op {n}", "ts": {n}.5 }}' for n in range(num_events)
    )
    text = (
        '{\n    "schemaVersion": 1,\n    "deviceProperties": [],\n    \n'
        f'      "quarterdeck": {{"profile_id": "p", "unix_offset_ns": {OFFSET_NS}}},\n'
        f'    "displayTimeUnit": "ms",\n    "baseTimeNanoseconds": {BASE_NS},\n'
        f'    "traceEvents": [\n    {events}\n  ],"traceName": "x.json" }}'
    )
    path.write_bytes(gzip.compress(text.encode()))
    return path


def span(name: str, start_ns: int, end_ns: int) -> Span:
    return Span(
        name=name,
        kind="internal",
        process="e0",
        start_ns=start_ns,
        end_ns=end_ns,
        span_id=f"{start_ns:016x}",
        parent_id=None,
        attributes={"gen_ai.request.model": "m"},
    )


def trace(*spans: Span) -> Trace:
    row = RequestRow(
        id="req-1",
        trace_id="1" * 32,
        state="finished",
        route="/v1/chat/completions",
        gateway="gateway-0",
        stream=True,
        received_at=NOW,
        age_s=1.0,
    )
    return Trace(request=row, headline="", spans=list(spans), complete=True)


def recorded(step: int, start_ns: int, *, end_ns: int | None, built_ns: int | None) -> RecordedStep:
    return RecordedStep(
        step=step,
        stage="done" if end_ns else "built",
        start_ns=start_ns,
        planned_ns=start_ns + 10_000,
        built_ns=built_ns,
        forwarded_ns=None,
        sampled_ns=None,
        end_ns=end_ns,
        requests=2,
        prefill_tokens=3,
        decode_tokens=1,
        used_blocks=4,
        waiting=0,
        preempted=0,
        request_ids=("req-a", "req-b"),
    )


def test_the_axis_is_exact_to_the_nanosecond():
    reading_ns = 22_805_543_475_037

    assert AXIS.us(reading_ns) * 1000 + BASE_NS == pytest.approx(reading_ns + OFFSET_NS, abs=1)
    assert AXIS.reading_ns(AXIS.us(reading_ns)) == reading_ns


def test_merging_keeps_every_event_and_adds_ours(tmp_path: Path):
    source = torch_file(tmp_path / "rank0.json.gz", num_events=60_000)  # more than one chunk
    target = tmp_path / "merged.json.gz"

    merge(source, target, lambda axis: [{"ph": "X", "name": "ours", "ts": axis.us(5)}])

    before = json.loads(gzip.decompress(source.read_bytes()))
    after = json.loads(gzip.decompress(target.read_bytes()))
    first, *rest = after.pop("traceEvents")
    assert first == {"ph": "X", "name": "ours", "ts": AXIS.us(5)}
    assert rest == before.pop("traceEvents")
    assert after == before
    assert sorted(path.name for path in tmp_path.iterdir()) == [target.name, source.name]


@pytest.mark.parametrize("content", [b"{}", b"", b'{"traceEvents": []}'])
def test_what_is_no_profile_leaves_no_target(tmp_path: Path, content: bytes):
    source = tmp_path / "rank0.json.gz"
    source.write_bytes(gzip.compress(content))

    with pytest.raises(MergeError):
        merge(source, tmp_path / "merged.json.gz", lambda _: [])
    assert [path.name for path in tmp_path.iterdir()] == [source.name]


def test_a_damaged_file_is_said_to_be_damaged(tmp_path: Path):
    source = torch_file(tmp_path / "rank0.json.gz", num_events=60_000)
    source.write_bytes(source.read_bytes()[:-2000])

    with pytest.raises(MergeError, match="damaged"):
        merge(source, tmp_path / "merged.json.gz", lambda _: [])


def test_a_step_is_tiled_by_its_parts_and_one_that_did_not_end_is_left_out():
    steps = [
        recorded(7, 1_000_000, end_ns=2_000_000, built_ns=1_100_000),
        recorded(8, 2_000_000, end_ns=None, built_ns=2_100_000),
    ]

    events = [event for event in step_events("e0", steps, AXIS) if event["ph"] == "X"]

    whole, *parts = events
    assert whole["name"] == "engine.step 7"
    assert (whole["pid"], whole["dur"]) == (STEPS_PID, 1000.0)
    assert whole["args"]["request_ids"] == ["req-a", "req-b"]
    assert [part["name"] for part in parts] == ["schedule", "build", "send"]
    assert [part["dur"] for part in parts] == [10.0, 90.0, 900.0]
    assert parts[0]["ts"] == whole["ts"] == AXIS.us(1_000_000)


def test_spans_that_overlap_are_drawn_in_lanes_in_which_they_nest():
    root, inner, across, after = (
        span("root", 0, 100),
        span("inner", 10, 50),
        span("across", 40, 80),
        span("after", 60, 90),
    )

    lanes = lanes_of([after, across, inner, root])

    assert [[each.name for each in lane] for lane in lanes] == [
        ["root", "inner", "after"],
        ["across"],
    ]


def test_spans_are_moved_from_the_hubs_clock_to_the_profiles_axis():
    hub_offset_ns = OFFSET_NS + 777_000  # taken at another time

    events = request_events(
        [trace(span("root", hub_offset_ns + 5_000, hub_offset_ns + 9_000))], hub_offset_ns, AXIS
    )

    (root,) = [event for event in events if event["ph"] == "X"]
    assert (root["pid"], root["ts"], root["dur"]) == (REQUESTS_PID, AXIS.us(5_000), 4.0)
    assert root["args"]["trace_id"] == "1" * 32


def row(number: int, state: str = "running") -> ProfileRow:
    created_at = NOW + timedelta(seconds=number)
    return ProfileRow(
        id=f"prof-{number}", engine="e0", epoch=1, state=state, created_at=created_at, actor="local"
    )


def finish(store: ProfileStore, number: int, num_bytes: int) -> None:
    store.add(row(number))
    name = f"prof-{number}-e0-rank0.json.gz"
    (store.directory_of(f"prof-{number}") / name).write_bytes(b"x" * num_bytes)
    store.end(f"prof-{number}", state="done")


def test_the_store_deletes_the_oldest_when_it_is_full(tmp_path: Path):
    store = ProfileStore(tmp_path / "profiles", 2500)

    for number in range(4):
        finish(store, number, 1000)

    assert [each.id for each in store.rows()] == ["prof-3", "prof-2"]
    assert sorted(path.name for path in (tmp_path / "profiles").iterdir()) == ["prof-2", "prof-3"]


def test_a_profile_larger_than_the_store_stays_until_the_next(tmp_path: Path):
    store = ProfileStore(tmp_path / "profiles", 500)

    finish(store, 1, 1000)
    assert [each.id for each in store.rows()] == ["prof-1"]
    finish(store, 2, 10)
    assert [each.id for each in store.rows()] == ["prof-2"]


def test_profiles_outlive_the_appliance_and_one_that_was_cut_short_has_failed(tmp_path: Path):
    store = ProfileStore(tmp_path / "profiles", 10_000)
    finish(store, 1, 100)
    store.add(row(2))

    cut_short, done = ProfileStore(tmp_path / "profiles", 10_000).rows()

    assert done == store.row("prof-1")
    assert (cut_short.state, cut_short.error) == ("failed", CUT_SHORT)


def test_only_files_that_the_row_names_are_handed_out(tmp_path: Path):
    store = ProfileStore(tmp_path / "profiles", 10_000)
    finish(store, 1, 100)
    (tmp_path / "secret").write_text("")

    assert store.file("prof-1", "prof-1-e0-rank0.json.gz").is_file()
    for name in ("profile.json", "../../secret", "/etc/passwd", ".."):
        with pytest.raises(NotFoundError):
            store.file("prof-1", name)
    with pytest.raises(NotFoundError):
        store.file("../profiles/prof-1", "prof-1-e0-rank0.json.gz")
    store.file("prof-1", "prof-1-e0-rank0.json.gz").unlink()
    with pytest.raises(NotFoundError):
        store.file("prof-1", "prof-1-e0-rank0.json.gz")


def test_an_engine_that_dies_while_it_writes_leaves_nothing(tmp_path: Path):
    store = ProfileStore(tmp_path / "profiles", 10_000)
    for number in (1, 2):
        store.add(row(number))
        (store.directory_of(f"prof-{number}") / f".prof-{number}-e0-rank0.json.gz.raw").touch()

    store.end("prof-1", state="failed")
    ProfileStore(tmp_path / "profiles", 10_000)  # the appliance died too

    left = {path.name for path in (tmp_path / "profiles").rglob("*") if path.is_file()}
    assert left == {"profile.json"}
