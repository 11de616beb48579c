"""The lock, the run directory, and the sweep of what a killed instance left behind."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from appliance.config.paths import find_instance
from appliance.supervisor.launcher.identity import identity_of, is_running
from appliance.supervisor.run_directory import (
    InstanceError,
    RunDirectory,
    StateLock,
    default_base,
    sweep,
    write_private,
)


@pytest.fixture
def state_dir(tmp_path: Path) -> Path:
    path = tmp_path / "state"
    path.mkdir()
    return path


@pytest.fixture
def base(run_dir: Path) -> Path:
    return run_dir / "base"


def test_a_second_instance_on_the_same_state_is_refused_with_the_firsts_pid(state_dir: Path):
    first = StateLock(state_dir)

    with pytest.raises(InstanceError, match=f"process {os.getpid()}.*--state-dir"):
        StateLock(state_dir)

    first.release()
    StateLock(state_dir).release()


def test_a_new_state_directory_is_private(tmp_path: Path):
    StateLock(tmp_path / "a" / "b").release()

    assert (tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o700


def test_the_run_directory_is_short_private_and_found_from_the_state(state_dir: Path, base: Path):
    run = RunDirectory(state_dir, base)
    run.publish_instance({"host": "127.0.0.1", "port": 1, "admin_port": 2})

    instance = find_instance(state_dir)

    assert (instance.run_dir, instance.admin_socket) == (run.path, run.path / "admin.sock")
    assert instance.data_socket == run.data_socket
    assert (instance.pid, instance.port, instance.admin_port) == (os.getpid(), 1, 2)
    assert run.path.stat().st_mode & 0o777 == 0o700
    assert (state_dir / "run").read_text().strip() == str(run.path)
    assert (state_dir / "instance.json").stat().st_mode & 0o777 == 0o600

    run.remove()
    assert list(state_dir.iterdir()) == []
    assert list(base.iterdir()) == []


def test_a_living_instances_directory_is_left_alone(state_dir: Path, base: Path):
    first = RunDirectory(state_dir, base)
    second = RunDirectory(state_dir, base)

    assert first.path.is_dir()
    assert second.path != first.path


@pytest.mark.process
def test_a_dead_instances_children_are_ended_and_its_directory_removed(state_dir: Path, base: Path):
    dead = subprocess.Popen([sys.executable, "-c", ""])
    left = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    bystander = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    run = RunDirectory(state_dir, base)
    owner = identity_of(dead.pid)
    stranger = identity_of(bystander.pid)
    assert owner is not None
    assert stranger is not None
    dead.wait()
    (run.path / "owner").write_text(f"{owner.pid} {owner.start_ticks}\n")
    run.note_child(left.pid)
    with (run.path / "children").open("a") as children:
        children.write(f"{stranger.pid} {stranger.start_ticks + 1}\nrubbish\n")

    ended = sweep(base)

    assert [identity.pid for identity in ended] == [left.pid]
    assert left.wait(5) == -9
    assert not run.path.exists()
    assert is_running(stranger), "a pid that was used again is nobody we know"
    bystander.kill()
    bystander.wait()


def test_a_directory_that_is_just_being_made_is_left_alone(base: Path):
    base.mkdir()
    (base / "young").mkdir()
    (base / "old").mkdir()
    os.utime(base / "old", (0, 0))

    sweep(base)

    assert [path.name for path in base.iterdir()] == ["young"]


def test_a_base_that_others_can_enter_is_refused(state_dir: Path, base: Path):
    base.mkdir(mode=0o755)

    with pytest.raises(InstanceError, match="not a private directory"):
        RunDirectory(state_dir, base)


def test_a_long_runtime_directory_is_not_used(
    tmp_path: Path, run_dir: Path, monkeypatch: pytest.MonkeyPatch
):
    long = tmp_path / ("x" * 60)
    long.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(long))
    assert default_base() == Path(f"/tmp/quarterdeck-{os.getuid()}")

    monkeypatch.setenv("XDG_RUNTIME_DIR", str(run_dir))
    assert default_base() == run_dir / "quarterdeck"


def test_a_private_file_is_replaced_whole(tmp_path: Path):
    path = tmp_path / "instance.json"
    write_private(path, json.dumps({"a": 1}))
    write_private(path, json.dumps({"a": 2}))

    assert json.loads(path.read_text()) == {"a": 2}
    assert [p.name for p in tmp_path.iterdir()] == ["instance.json"]


def test_a_child_that_cannot_be_written_down_runs_on(state_dir: Path, base: Path):
    run = RunDirectory(state_dir, base)
    (run.path / "children").mkdir()  # opening it for writing fails, as on a full disk

    run.note_child(os.getpid())

    run.remove()
