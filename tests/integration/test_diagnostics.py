"""Profiles, stacks and flight recordings of a real appliance."""

import gzip
import json
import os
import re
import shutil
import signal
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from appliance.config.paths import find_instance
from engine.wire.flight import read_flight
from tests.integration.appliance_process import ApplianceProcess, wait_until
from tests.integration.otlp_sink import OtlpSink
from tests.integration.streams import Stream
from tests.tiny_model import make_tiny_model

pytestmark = pytest.mark.process

STEP = re.compile(r"engine\.step (\d+)")
MS_IN_NS = 1_000_000
CHROME_TRACE = {
    "type": "object",
    "required": ["traceEvents", "baseTimeNanoseconds", "displayTimeUnit", "quarterdeck"],
    "properties": {
        "baseTimeNanoseconds": {"type": "integer"},
        "quarterdeck": {"type": "object", "required": ["profile_id", "unix_offset_ns"]},
        "traceEvents": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "required": ["ph", "name", "pid", "tid"],
                "properties": {
                    "ph": {"enum": ["X", "M", "i", "s", "f"]},
                    "name": {"type": "string"},
                    "pid": {"type": ["integer", "string"]},
                    "tid": {"type": ["integer", "string"]},
                    "ts": {"type": "number", "minimum": 0},
                    "dur": {"type": "number", "minimum": 0},
                },
                "if": {"properties": {"ph": {"const": "X"}}},
                "then": {"required": ["ts", "dur"]},
            },
        },
    },
}


@dataclass
class Watched:
    """An appliance, and what its collector gets."""

    appliance: ApplianceProcess
    sink: OtlpSink
    out: Path

    def step_spans(self) -> dict[int, tuple[int, int]]:
        """Start and end of the exported steps, Unix time."""
        found: dict[int, tuple[int, int]] = {}
        for _, span in list(self.sink.spans):
            numbers = [a.value.int_value for a in span.attributes if a.key == "quarterdeck.step"]
            if span.name == "engine.step" and numbers:
                found[numbers[0]] = (span.start_time_unix_nano, span.end_time_unix_nano)
        return found

    def streams(self, count: int, max_tokens: int) -> list[Stream]:
        """Streams that have begun."""
        model = self.appliance.model
        begun = [
            Stream(self.appliance, model, f"s{k}", max_tokens=max_tokens, ignore_eos=True)
            for k in range(count)
        ]
        for stream in begun:
            stream.start()
        for stream in begun:
            assert stream.started.wait(30)
        return begun

    def profiles(self) -> list[dict[str, Any]]:
        return self.appliance.admin("/admin/v1/profiles").json()["items"]

    def abort(self, streams: list[Stream]) -> None:
        for stream in streams:
            self.appliance.admin(f"/admin/v1/requests/{stream.request_id}", "DELETE")
        for stream in streams:
            stream.join(20)


@pytest.fixture(scope="module")
def watched() -> Iterator[Watched]:
    root = Path(tempfile.mkdtemp(prefix="qd-it-", dir="/tmp"))
    model = make_tiny_model(root / "tiny", max_len=8192)
    sink = OtlpSink()
    flags = ("--dtype", "float32", "--drain-s", "2", "--otlp-endpoint", sink.endpoint)
    appliance = ApplianceProcess(root, str(model), *flags)
    (root / "out").mkdir()
    try:
        yield Watched(appliance.start(), sink, root / "out")
    finally:
        appliance.stop()
        sink.close()
        shutil.rmtree(root, ignore_errors=True)


def read(path: Path) -> dict[str, Any]:
    trace = json.loads(gzip.decompress(path.read_bytes()))
    jsonschema.validate(trace, CHROME_TRACE)
    return trace


def steps_in(trace: dict[str, Any], category: str) -> dict[int, tuple[int, int]]:
    """Start and end of the spans that are named after steps, Unix time."""
    base_ns, found = trace["baseTimeNanoseconds"], {}
    for event in trace["traceEvents"]:
        match = STEP.fullmatch(event["name"])
        if match and event.get("cat") == category:
            start_ns = base_ns + round(event["ts"] * 1000)
            found[int(match[1])] = (start_ns, start_ns + round(event["dur"] * 1000))
    return found


def test_a_profile_opens_and_names_the_same_steps_as_the_spans(watched: Watched):
    streams = watched.streams(2, max_tokens=8000)

    done = watched.appliance.cli(
        "profile", "e0", "--steps", "20", "--out", str(watched.out), "-o", "json"
    )
    watched.abort(streams)

    assert done.returncode == 0, done.stderr
    row = json.loads(done.stdout)
    numbers = list(range(row["first_step"], row["last_step"] + 1))
    assert len(numbers) == 20
    merged, torch = (Path(path) for path in sorted(row["paths"]))
    assert torch.name == f"{row['id']}-e0-rank0.json.gz"
    profiled = steps_in(read(torch), "user_annotation")
    assert sorted(profiled) == numbers
    both = read(merged)
    facts = steps_in(both, "quarterdeck")
    assert sorted(facts) == numbers
    assert steps_in(both, "user_annotation") == profiled
    wait_until(lambda: set(numbers) <= set(watched.step_spans()), 20, "the spans of its steps")
    spans = watched.step_spans()
    for number in numbers:
        for outer in (facts[number], spans[number]):
            inner = profiled[number]
            assert outer[0] - MS_IN_NS <= inner[0] <= inner[1] <= outer[1] + MS_IN_NS
    requests = {
        event["args"]["name"]
        for event in both["traceEvents"]
        if event["name"] == "thread_name" and event["pid"] == 1_000_000_002
    }
    assert requests == {stream.request_id for stream in streams}


def test_vllms_routes_write_a_file_per_run_and_repeats_are_no_ops(watched: Watched):
    before = {row["id"] for row in watched.profiles()}
    streams = watched.streams(1, max_tokens=4000)
    for _ in range(2):
        for path in ("/start_profile", "/start_profile", "/stop_profile", "/stop_profile"):
            answer = watched.appliance.admin(path, "POST")
            assert (answer.status_code, answer.text) == (200, "")
    watched.abort(streams)

    rows = [row for row in watched.profiles() if row["id"] not in before]
    assert [row["state"] for row in rows] == ["done", "done"]
    names = {file["name"] for row in rows for file in row["files"]}
    assert len(names) == 4
    wanted = rows[0]["files"][0]["name"]
    fetched = watched.appliance.cli("profile", "get", rows[0]["id"], "--out", str(watched.out))
    assert fetched.returncode == 0, fetched.stderr
    assert "ui.perfetto.dev" in fetched.stderr
    assert str(watched.out / wanted) in fetched.stdout.splitlines()
    assert rows[0]["id"] in watched.appliance.cli("profile", "list").stdout
    deleted = watched.appliance.cli("profile", "delete", rows[0]["id"])
    assert deleted.returncode == 0
    assert rows[0]["id"] not in {row["id"] for row in watched.profiles()}
    gone = watched.appliance.cli("profile", "get", rows[0]["id"])
    assert (gone.returncode, "profile list" in gone.stderr) == (1, True)


def test_profiles_are_refused_where_they_make_no_sense(watched: Watched):
    admin = watched.appliance.admin
    for body, status in (
        ({"engine": "e9", "steps": 5}, 404),
        ({"engine": "e0", "steps": 201}, 422),
        ({"engine": "e0", "steps": 51, "with_stacks": True}, 422),
    ):
        assert admin("/admin/v1/profiles", "POST", json=body).status_code == status
    body = {"engine": "e0", "duration_s": 30}
    begun = admin("/admin/v1/profiles", "POST", json=body).json()
    assert begun["kind"] == "profile"
    assert admin("/admin/v1/profiles", "POST", json=body).status_code == 409
    row = watched.profiles()[0]
    assert row["state"] == "running"
    assert admin(f"/admin/v1/profiles/{row['id']}", "DELETE").status_code == 409

    for _ in range(2):
        ended = admin(f"/admin/v1/profiles/{row['id']}/stop", "POST", params={"wait": 30}).json()
        assert ended["state"] == "done"
    for name in ("profile.json", "..%2Fprofile.json", "%2Fetc%2Fpasswd"):
        path = f"/admin/v1/profiles/{row['id']}/files/{name}"
        assert admin(path).status_code == 404


def test_sleep_ends_a_profile_and_keeps_what_it_has(watched: Watched):
    admin = watched.appliance.admin
    begun = admin("/admin/v1/profiles", "POST", json={"engine": "e0"}).json()
    assert watched.appliance.chat("hello", max_tokens=3).status_code == 200

    slept = watched.appliance.cli("sleep", "e0")
    ended = admin(f"/admin/v1/operations/{begun['id']}", params={"wait": 30}).json()
    refused = admin("/admin/v1/profiles", "POST", json={"engine": "e0"})
    woken = watched.appliance.cli("wake", "e0")

    assert (slept.returncode, woken.returncode) == (0, 0)
    assert ended["state"] == "done"
    assert len(ended["result"]["files"]) == 2
    assert refused.status_code == 409
    kinds = [
        event["kind"]
        for event in admin("/admin/v1/engines/e0/flight").json()["events"]
        if event["kind"] in {"sleep", "wake", "profile.stop"}
    ]
    assert kinds[:3] == ["wake", "sleep", "profile.stop"]


def test_stacks_say_where_an_engine_is(watched: Watched):
    done = watched.appliance.cli("profile", "e0", "--stacks")

    assert done.returncode == 0, done.stderr
    assert "engine/core/process.py" in done.stdout
    assert "by py-spy" in done.stderr


def test_after_a_kill_the_last_steps_batch_is_there(watched: Watched):
    appliance = watched.appliance
    streams = watched.streams(4, max_tokens=8000)
    row = appliance.engine()
    begun = appliance.admin("/admin/v1/profiles", "POST", json={"engine": "e0"}).json()
    live = appliance.admin("/admin/v1/engines/e0/flight", params={"steps": 1}).json()
    assert (live["alive"], live["epoch"], live["pid"]) == (True, row["epoch"], row["pid"])

    os.kill(row["pid"], signal.SIGKILL)
    for stream in streams:
        stream.join(20)
    wait_until(
        lambda: (now := appliance.engine())["epoch"] > row["epoch"] and now["state"] == "ready"
    )

    report = appliance.admin("/admin/v1/engines/e0/flight").json()
    assert (report["epoch"], report["alive"], report["last_exit"]) == (
        row["epoch"],
        False,
        "SIGKILL",
    )
    last = report["steps"][0]
    ids = {stream.request_id for stream in streams}
    assert set(last["request_ids"]) == ids
    assert last["requests"] == 4
    assert last["decode_tokens"] == 4
    tokens = max(len(stream.frames) for stream in streams)
    assert last["step"] >= tokens
    assert [step["step"] for step in report["steps"]] == [last["step"] - n for n in range(20)]
    assert all(step["finished"] for step in report["steps"][1:])
    profile = appliance.admin(f"/admin/v1/operations/{begun['id']}", params={"wait": 30}).json()
    assert profile["state"] == "failed"
    assert "e0" in profile["error"]

    events = appliance.admin("/admin/v1/events", params={"kind": "engine."}).json()["items"]
    told = {event["kind"]: event["text"] for event in reversed(events)}
    for kind in ("engine.died", "engine.postmortem"):
        assert f"step {last['step']}" in told[kind]
    batch_of_died = set() if last["finished"] else ids  # killed between two steps: in none
    for kind, named in (("engine.died", batch_of_died), ("engine.postmortem", ids)):
        assert all(request_id in told[kind] for request_id in named)
    shown = appliance.cli("postmortem", "e0")
    assert shown.returncode == 0, shown.stderr
    assert f"e0 epoch {row['epoch']}" in shown.stdout.splitlines()[0]
    assert "SIGKILL" in shown.stdout.splitlines()[0]
    now = json.loads(appliance.cli("postmortem", "e0", "--live", "-o", "json").stdout)
    assert (now["alive"], now["epoch"]) == (True, appliance.engine()["epoch"])


def test_recordings_are_private_and_can_be_read_without_an_appliance(watched: Watched):
    appliance = watched.appliance
    online = json.loads(appliance.cli("postmortem", "-o", "json").stdout)
    directory = appliance.state_dir / "flight"
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in directory.iterdir()} == {0o600}
    epoch = appliance.engine()["epoch"]
    pid = find_instance(appliance.state_dir).pid

    assert appliance.stop() == 0

    assert not Path(f"/proc/{pid}").exists()
    offline = json.loads(appliance.cli("postmortem", "e0", "-o", "json").stdout)
    assert offline == online
    orderly = read_flight(directory / f"e0-{epoch}.ring")
    assert orderly.header.ended_ns is not None
    unknown = appliance.cli("postmortem", "e0", "--epoch", "99")
    assert unknown.returncode == 1
    assert "Recorded epochs:" in unknown.stderr
