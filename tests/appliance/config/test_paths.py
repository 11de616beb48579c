"""Which directory a command means, and which instance lives there."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from appliance.config import paths


def write_instance(directory: Path, pid: int) -> None:
    instance = {
        "pid": pid,
        "run_dir": "/run/qd",
        "admin_socket": "/run/qd/admin.sock",
        "data_socket": "/run/qd/data.sock",
        "host": "127.0.0.1",
        "port": 8000,
        "admin_port": 8001,
        "added_by_a_newer_version": 1,
    }
    (directory / "instance.json").write_text(json.dumps(instance))


def test_the_flag_wins_over_the_variable_over_the_platform(tmp_path: Path):
    env = {"QUARTERDECK_STATE_DIR": str(tmp_path / "env")}

    assert paths.state_dir(tmp_path / "flag", env) == tmp_path / "flag"
    assert paths.state_dir(None, env) == tmp_path / "env"
    assert paths.state_dir(None, {}).name == "quarterdeck"
    assert paths.model_dir(None, {"QUARTERDECK_MODEL_DIR": "/models"}) == Path("/models")


def test_a_client_command_follows_the_file_that_serve_would_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("QUARTERDECK_STATE_DIR", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "quarterdeck.toml").write_text('state_dir = "state"\n')

    assert paths.client_state_dir() == tmp_path / "state"
    assert paths.client_state_dir(tmp_path / "flag") == tmp_path / "flag"


def test_a_running_instance_is_found(tmp_path: Path):
    write_instance(tmp_path, os.getpid())

    found = paths.find_instance(tmp_path)

    assert found.admin_socket == Path("/run/qd/admin.sock")
    assert (found.host, found.port, found.admin_port) == ("127.0.0.1", 8000, 8001)


@pytest.mark.process
def test_the_file_of_a_dead_instance_does_not_count(tmp_path: Path):
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    write_instance(tmp_path, child.pid)

    with pytest.raises(paths.NotRunningError, match=f"process {child.pid} is gone"):
        paths.find_instance(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"pid": "x"}', "\x00"])
def test_a_broken_instance_file_is_said_to_be_broken(tmp_path: Path, text: str):
    (tmp_path / "instance.json").write_text(text)

    with pytest.raises(paths.NotRunningError, match="is not an instance file"):
        paths.find_instance(tmp_path)


def test_without_a_file_nothing_runs(tmp_path: Path):
    with pytest.raises(paths.NotRunningError, match="no appliance is running in"):
        paths.find_instance(tmp_path)
