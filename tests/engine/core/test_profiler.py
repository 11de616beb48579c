"""Profiles: bounded, one at a time, answered once, and never the engine's problem."""

import gzip
import json
import threading
from pathlib import Path

import pytest

from engine.core import profiler_torch
from engine.core.profiler_session import MAX_HEAVY_STEPS, MAX_STEPS
from engine.wire.calls import ProfileReport, Sleep, SleepReport, StartProfile, StopProfile
from engine.wire.messages import UtilityError, UtilityReply
from tests.engine.core.core_bench import CoreBench


class ProfiledBench(CoreBench):
    """Turns of the loop go on until the writer has woken it."""

    def __init__(self) -> None:
        super().__init__()
        self.woken = threading.Event()

    def wake(self) -> None:
        self.woken.set()

    def settle(self) -> None:
        assert self.woken.wait(30)
        self.turn()

    def error(self, call_id: str = "c1") -> UtilityError:
        (reply,) = [body for body in self.bodies(UtilityReply) if body.call_id == call_id]
        assert reply.error is not None
        return reply.error


@pytest.fixture
def bench() -> ProfiledBench:
    return ProfiledBench()


def start(directory: Path, profile_id: str = "prof-1", **options: object) -> StartProfile:
    return StartProfile(profile_id=profile_id, directory=str(directory), **options)


def content(directory: Path, report: ProfileReport) -> dict:
    (name,) = report.files
    return json.loads(gzip.decompress((directory / name).read_bytes()))


def step_names(trace: dict) -> list[str]:
    names = [event.get("name", "") for event in trace["traceEvents"]]
    return [name for name in names if name.startswith("engine.step")]


def test_a_profile_covers_exactly_its_steps(bench: ProfiledBench, tmp_path: Path):
    bench.add("a", [1, 2], max_tokens=9)
    bench.turn()

    bench.call(start(tmp_path, steps=3))
    bench.run()
    bench.settle()

    report = bench.reply(ProfileReport)
    assert (report.first_step, report.last_step) == (2, 4)
    assert report.files == ("prof-1-e0-rank0.json.gz",)
    assert report.num_bytes == (tmp_path / report.files[0]).stat().st_size
    trace = content(tmp_path, report)
    assert step_names(trace) == ["engine.step 2", "engine.step 3", "engine.step 4"]
    assert trace["quarterdeck"]["profile_id"] == "prof-1"
    assert [path.name for path in tmp_path.iterdir()] == [report.files[0]]
    assert "profile" in bench.beats


def test_two_profiles_in_a_row_give_two_files(bench: ProfiledBench, tmp_path: Path):
    for number in (1, 2):
        bench.woken.clear()
        bench.add(f"r{number}", [number], max_tokens=4)
        bench.call(start(tmp_path, f"prof-{number}", steps=2), call_id=f"c{number}")
        bench.run()
        bench.settle()

    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "prof-1-e0-rank0.json.gz",
        "prof-2-e0-rank0.json.gz",
    ]


def test_a_stop_answers_both_and_another_stop_finds_nothing(bench: ProfiledBench, tmp_path: Path):
    bench.add("a", [1], max_tokens=50)
    bench.call(start(tmp_path), call_id="start")
    bench.turn()

    bench.call(StopProfile(), call_id="stop")
    bench.settle()
    bench.call(StopProfile(), call_id="again")

    started, stopped, again = (
        bench.reply(ProfileReport, call_id) for call_id in ("start", "stop", "again")
    )
    assert started == stopped
    assert not started.already
    assert (again.already, again.files) == (True, ())


def test_a_second_profile_beside_the_first_is_refused(bench: ProfiledBench, tmp_path: Path):
    bench.call(start(tmp_path), call_id="first")
    bench.call(start(tmp_path, "prof-2"), call_id="second")

    assert bench.error("second").code == "busy"
    bench.call(StopProfile(), call_id="stop")
    bench.settle()


def test_an_engine_that_falls_asleep_ends_its_profile_first(bench: ProfiledBench, tmp_path: Path):
    bench.add("a", [1], max_tokens=3)
    bench.call(start(tmp_path), call_id="profile")
    bench.run()

    bench.call(Sleep(level=1), call_id="sleep")
    bench.settle()

    assert bench.reply(SleepReport, "sleep").level == 1
    report = bench.reply(ProfileReport, "profile")
    assert step_names(content(tmp_path, report)) == [f"engine.step {n}" for n in (1, 2, 3)]


def test_an_idle_engine_is_profiled_until_the_time_is_over(bench: ProfiledBench, tmp_path: Path):
    bench.call(start(tmp_path, max_s=5.0))
    bench.turn()
    assert not bench.bodies(UtilityReply)

    bench.now_ns = 2**62
    bench.turn()
    bench.settle()

    report = bench.reply(ProfileReport)
    assert (report.first_step, report.last_step) == (None, None)
    assert len(report.files) == 1


@pytest.mark.parametrize(
    "options",
    [
        {"steps": 0},
        {"steps": MAX_STEPS + 1},
        {"steps": MAX_HEAVY_STEPS + 1, "with_stacks": True},
        {"max_s": 0.0},
        {"max_s": 1e9},
        {"profile_id": "../../etc/passwd"},
        {"directory": "/nowhere/at/all"},
    ],
)
def test_what_is_out_of_bounds_is_refused(
    bench: ProfiledBench, tmp_path: Path, options: dict[str, object]
):
    call = {"profile_id": "prof-1", "directory": str(tmp_path), **options}

    bench.call(StartProfile(**call))

    assert bench.error().code == "invalid"
    assert bench.core.utilities.profiles.running is None


@pytest.mark.parametrize("broken", ["__init__", "stop", "save"])
def test_a_broken_profiler_fails_its_call_and_nothing_else(
    bench: ProfiledBench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
):
    real_stop = profiler_torch.TorchProfile.stop

    def fail(self: profiler_torch.TorchProfile, *_: object, **__: object) -> None:
        if broken == "stop":
            real_stop(self)
        raise RuntimeError("no such luck")

    monkeypatch.setattr(profiler_torch.TorchProfile, broken, fail)
    bench.add("a", [1, 2], max_tokens=4)
    bench.call(start(tmp_path, steps=2))
    bench.run()
    if broken == "save":
        bench.settle()

    assert bench.error().code == "internal_error"
    assert "no such luck" in bench.error().message
    assert len(bench.tokens("a")) == 4
    assert list(tmp_path.iterdir()) == []


def test_at_the_engines_end_a_pending_profile_is_refused(bench: ProfiledBench, tmp_path: Path):
    bench.call(start(tmp_path))
    session = bench.core.utilities.profiles.running
    assert session is not None

    bench.core.shut_down()

    assert bench.error().code == "shutting_down"
    session.stop()  # this thread lives on
