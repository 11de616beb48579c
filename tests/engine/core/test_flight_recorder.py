"""The flight recorder: what is about to happen stands in the file before it does."""

import os
import resource
import signal
import stat
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.config import EngineConfig
from engine.core.batch import ScheduledRequest
from engine.core.flight_recorder import (
    BUILT,
    FORWARD,
    SAMPLED,
    FlightRecorder,
    open_flight_recorder,
)
from engine.core.plan import Plan
from engine.wire.flight import (
    EVENT_CAPACITY,
    FILE_BYTES,
    STEP_BYTES,
    STEP_CAPACITY,
    STEPS_OFFSET,
    FlightError,
    pack_id,
    read_flight,
    unpack_ids,
)
from engine.wire.messages import SamplingParams
from tests.engine.core.core_bench import CoreBench
from tests.engine.core.kv_runner import FAULTY, POISON, KvRunner

ROOT = Path(__file__).parents[3]
SAMPLING = SamplingParams(max_tokens=1)


def config(path: Path) -> EngineConfig:
    return EngineConfig(
        engine_id="e0", epoch=7, model="m", model_name="m", clients=(), flight_path=str(path)
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "flight" / "e0-7.ring"


def ids(count: int) -> list[str]:
    return [f"req-{number:024x}" for number in range(count)]


def plan_of(request_ids: list[str]) -> Plan:
    batch = [ScheduledRequest(name, [1], 0, [0], True, SAMPLING, 0) for name in request_ids]
    return Plan(batch=batch, prefill_tokens=5, decode_tokens=len(batch))


def test_a_step_can_be_read_before_it_is_computed_and_at_each_stage(path: Path):
    recorder = open_flight_recorder(config(path))

    recorder.begin_step(1, 1000, plan_of(ids(3)), 4, 9)
    planned = read_flight(path).steps[0]
    recorder.stage(BUILT, 1100)
    built = read_flight(path).steps[0]
    recorder.stage(FORWARD, 1200)
    recorder.stage(SAMPLED, 1300)
    recorder.end_step(1400)
    recorder.stage(BUILT, 9999)  # a warm-up after it
    done = read_flight(path).steps[0]

    assert planned.stage == "planned"
    assert planned.request_ids == tuple(ids(3))
    assert (planned.requests, planned.waiting, planned.used_blocks) == (3, 4, 9)
    assert (planned.prefill_tokens, planned.decode_tokens) == (5, 3)
    assert (built.stage, built.built_ns, built.forwarded_ns) == ("built", 1100, None)
    assert done.finished
    assert (done.start_ns, done.built_ns, done.forwarded_ns) == (1000, 1100, 1200)
    assert (done.sampled_ns, done.end_ns) == (1300, 1400)


def test_the_file_is_private_and_says_whose_it_is(path: Path):
    recorder = open_flight_recorder(config(path))

    header = read_flight(path).header
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert (header.engine_id, header.epoch, header.pid) == ("e0", 7, os.getpid())
    assert header.boot_id == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert abs(header.unix_ns(time.monotonic_ns()) - time.time_ns()) < 10_000_000
    assert header.ended_ns is None
    recorder.close()
    assert read_flight(path).header.ended_ns is not None


@pytest.mark.parametrize("suffix", ["", "-0", "-r1"])
def test_at_least_64_ids_of_a_batch_are_kept_and_the_rest_is_counted(path: Path, suffix: str):
    names = [name + suffix for name in ids(200)]
    recorder = open_flight_recorder(config(path))

    recorder.begin_step(1, 0, plan_of(names[:64]), 0, 0)
    recorder.begin_step(2, 0, plan_of(names), 0, 0)

    many, few = read_flight(path).steps
    assert few.request_ids == tuple(names[:64])
    assert many.requests == 200
    assert many.request_ids == tuple(names[: len(many.request_ids)])
    assert len(many.request_ids) >= 64


def test_the_newest_steps_and_events_stay(path: Path):
    recorder = open_flight_recorder(config(path))
    for step in range(1, STEP_CAPACITY + 101):
        recorder.begin_step(step, step, plan_of(["a"]), 0, 0)
        recorder.end_step(step + 1)
    for number in range(EVENT_CAPACITY + 10):
        recorder.event("kind", f"event {number}")

    flight = read_flight(path)
    assert [step.step for step in flight.steps] == list(range(STEP_CAPACITY + 100, 100, -1))
    assert [event.text for event in flight.events] == [
        f"event {number}" for number in range(EVENT_CAPACITY + 9, 9, -1)
    ]
    assert [step.step for step in read_flight(path, steps=2).steps] == [4196, 4195]


@pytest.mark.parametrize("torn", [0, 5, 2**40])
def test_a_record_that_was_being_written_is_left_out(path: Path, torn: int):
    recorder = open_flight_recorder(config(path))
    for step in range(1, 301):
        recorder.begin_step(step, step, plan_of(["a"]), 0, 0)
    with path.open("r+b") as file:
        file.seek(STEPS_OFFSET + 299 * STEP_BYTES)
        file.write(torn.to_bytes(8, "little"))

    assert [step.step for step in read_flight(path, steps=2).steps] == [299, 298]


def test_the_same_event_again_counts_up(path: Path):
    recorder = open_flight_recorder(config(path))

    for _ in range(3):
        recorder.event("fenced", "AddRequest for another epoch", 5)
    recorder.event("sleep", "x" * 1000, 6)

    long, often = read_flight(path).events
    assert (often.kind, often.times, often.at_ns) == ("fenced", 3, 5)
    assert long.text == "x" * 200


def test_without_a_file_nothing_is_recorded_and_nothing_fails(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    (tmp_path / "file").write_text("")

    recorder = open_flight_recorder(config(tmp_path / "file" / "e0-7.ring"))

    assert not recorder.enabled
    recorder.begin_step(1, 0, plan_of(["a"]), 0, 0)
    recorder.stage(BUILT, 0)
    recorder.end_step(1)
    recorder.event("kind", "text")
    recorder.close()
    assert len(caplog.records) == 1


def test_a_full_disk_is_found_when_the_file_is_made_and_leaves_nothing(path: Path):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES // 2, before[1]))
    try:
        recorder = open_flight_recorder(config(path))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)

    assert not recorder.enabled
    assert not path.exists()


@pytest.mark.parametrize("content", [b"", b"QDFLIGHT", b"x" * FILE_BYTES, b"QDFLIGHT" * 700_000])
def test_what_is_no_recording_is_refused(tmp_path: Path, content: bytes):
    path = tmp_path / "e0-1.ring"
    path.write_bytes(content[:FILE_BYTES])

    with pytest.raises(FlightError):
        read_flight(path)
    with pytest.raises(FlightError):
        read_flight(tmp_path / "nothing.ring")


@settings(max_examples=40, deadline=None)
@given(st.lists(st.one_of(st.text(max_size=40), st.from_regex(r"req-[0-9a-f]{24}(-[0-9r]{1,4})?"))))
def test_ids_come_back_as_they_were(names: list[str]):
    names = [name for name in names if name.isprintable() and len(name.encode()) <= 100]
    area = b"".join(pack_id(name) for name in names)

    assert unpack_ids(area, len(names)) == tuple(names)


def test_a_gateways_id_takes_13_bytes():
    assert len(pack_id(f"req-{'0f' * 12}")) == 13


@pytest.mark.process
def test_after_a_kill_the_last_step_is_there(path: Path):
    script = (
        "import sys; from pathlib import Path\n"
        "from tests.engine.core.test_flight_recorder import *\n"
        "recorder = open_flight_recorder(config(Path(sys.argv[1])))\n"
        "step = 0\n"
        "while True:\n"
        "    step += 1\n"
        "    recorder.begin_step(step, step, plan_of([f'req-{step:024x}']), 1, 2)\n"
        "    if step == 2000: print(step, flush=True)\n"
    )
    command = [sys.executable, "-c", script, str(path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"2000\n"
        process.send_signal(signal.SIGKILL)
        process.wait()

    steps = read_flight(path).steps
    assert steps[0].step >= 2000
    numbers = [step.step for step in steps]
    assert numbers == list(range(numbers[0], numbers[0] - len(numbers), -1))
    for step in steps:
        assert step.request_ids == (f"req-{step.step:024x}",)


def test_a_step_of_64_requests_costs_little(path: Path):
    recorder = open_flight_recorder(config(path))
    plan = plan_of(ids(64))
    costs_ns: list[int] = []
    for step in range(1, 2001):
        start_ns = time.perf_counter_ns()
        recorder.begin_step(step, start_ns, plan, 3, 100)
        for stage in (BUILT, FORWARD, SAMPLED):
            recorder.stage(stage, start_ns)
        recorder.end_step(start_ns)
        costs_ns.append(time.perf_counter_ns() - start_ns)

    assert statistics.median(costs_ns) < 30_000  # 7 us on an idle core


# ------------------------------------------------------------ in the engine's loop


def test_the_loop_tells_of_each_step_and_of_requests_that_end_badly(path: Path):
    bench = CoreBench(KvRunner())
    recorder = open_flight_recorder(config(path))
    bench.core.flight = recorder
    bench.core._runner.on_stage = recorder.stage

    bench.add("good", [1, 2], max_tokens=3)
    bench.add("faulty", [FAULTY], max_tokens=3)
    bench.run()
    bench.add("poison", [POISON], max_tokens=3)
    bench.run()

    flight = read_flight(path)
    assert [step.step for step in flight.steps] == [4, 3, 2, 1]
    assert all(step.finished for step in flight.steps)
    assert flight.steps[-1].request_ids == ("good", "faulty")
    assert flight.steps[0].request_ids == ("poison",)
    told = [(event.kind, event.text) for event in flight.events]
    kinds = [kind for kind, _ in told]
    assert kinds == ["request.failed", "step.failed", "request.failed"]
    assert told[-1][1].startswith("faulty of gateway-0, 1+0 tokens: ")


def test_a_recorder_that_records_nothing_is_the_default():
    assert not CoreBench().core.flight.enabled
    assert not FlightRecorder().enabled
