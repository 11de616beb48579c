"""Engines, gateways and the supervisor die; promises hold."""

import os
import signal
import time

import psutil
import pytest

from tests.integration.appliance_process import ApplianceProcess, wait_until
from tests.integration.streams import Stream
from tests.tiny_model import make_tiny_model

pytestmark = pytest.mark.process


@pytest.fixture
def appliance(root):
    model = make_tiny_model(root / "tiny", max_len=8192)
    appliance = ApplianceProcess(
        root, str(model), "--dtype", "float32", "--drain-s", "3", "--max-num-seqs", "4"
    )
    appliance.start()
    yield appliance
    appliance.stop()


def test_a_killed_engine_fails_what_streamed_and_answers_what_had_not(
    appliance: ApplianceProcess,
):
    model = appliance.model
    streaming = [
        Stream(appliance, model, f"s{k}", max_tokens=8000, ignore_eos=True) for k in range(4)
    ]
    for stream in streaming:
        stream.start()
    for stream in streaming:
        assert stream.started.wait(30)
    queued = [Stream(appliance, model, f"q{k}", max_tokens=5, ignore_eos=True) for k in range(3)]
    for stream in queued:
        stream.start()
    wait_until(lambda: appliance.engine()["waiting"] >= 3, what="three wait")
    before = appliance.engine()

    os.kill(before["pid"], signal.SIGKILL)

    for stream in streaming:
        stream.join(10)
        assert not stream.is_alive()
        assert not stream.done
        assert stream.error is not None
        assert stream.error["code"] == "engine_restarted"
    for stream in queued:
        stream.join(60)
        assert stream.done
        assert stream.finish_reason == "length"
    after = wait_until(lambda: appliance.engine()["state"] == "ready" and appliance.engine())
    assert after["epoch"] > before["epoch"]
    assert after["restarts"] == 1
    assert appliance.chat("again").status_code == 200
    assert appliance.metric("quarterdeck_requests_requeued_total") == 3


def test_a_stopped_engine_is_found_hanging_and_replaced(root, tiny_model_path):
    config = root / "quarterdeck.toml"
    config.write_text("hang_s = 2.0\n")
    appliance = ApplianceProcess(root, str(tiny_model_path), "--config", str(config))
    appliance.start()
    try:
        before = appliance.engine()
        os.kill(before["pid"], signal.SIGSTOP)

        after = wait_until(
            lambda: (
                (row := appliance.engine())["epoch"] > before["epoch"]
                and row["state"] == "ready"
                and row
            ),
            40,
            "a new epoch is ready",
        )

        assert not psutil.pid_exists(before["pid"])
        assert after["last_exit"].startswith("hung: no tick of its loop for 2")
    finally:
        appliance.stop()


def test_a_killed_gateway_comes_back_behind_the_same_port_and_its_requests_end(
    appliance: ApplianceProcess,
):
    stream = Stream(appliance, appliance.model, "endless", max_tokens=8000, ignore_eos=True)
    stream.start()
    assert stream.started.wait(30)
    gateway = appliance.admin("/admin/v1/gateways").json()["items"][0]

    os.kill(gateway["pid"], signal.SIGKILL)

    wait_until(lambda: appliance.engine()["running"] == 0, 10, "aborted in the engine")
    wait_until(
        lambda: (
            appliance.admin("/admin/v1/gateways").json()["items"][0]["epoch"] > gateway["epoch"]
        ),
        20,
    )
    appliance.wait_ready()
    stream.join(5)
    assert stream.is_broken
    assert not stream.done
    assert appliance.chat("hello").status_code == 200
    wait_until(lambda: appliance.metric("quarterdeck_requests_running") == 0, 5)
    rows = appliance.admin("/admin/v1/requests", params={"state": "failed"}).json()["items"]
    assert [row["id"] for row in rows] == [stream.request_id]


def test_a_killed_supervisor_leaves_nothing_behind_and_the_next_start_works_at_once(
    appliance: ApplianceProcess,
):
    children = appliance.children()
    assert len(children) >= 2
    port, admin_port = appliance.instance["port"], appliance.instance["admin_port"]
    assert appliance.process is not None

    appliance.process.kill()
    appliance.process.wait()

    deadline = time.monotonic() + 2
    while time.monotonic() < deadline and any(child.is_running() for child in children):
        time.sleep(0.02)
    left = [c for c in children if c.is_running() and c.status() != psutil.STATUS_ZOMBIE]
    assert left == []

    index = appliance.command.index("--port")
    appliance.command[index + 1] = str(port)
    index = appliance.command.index("--admin-port")
    appliance.command[index + 1] = str(admin_port)
    appliance.start()
    assert appliance.chat("hello").status_code == 200


def test_ctrl_c_ends_everything_with_exit_code_zero(appliance: ApplianceProcess):
    children = appliance.children()
    stream = Stream(appliance, appliance.model, "hello", max_tokens=5, ignore_eos=True)
    stream.start()
    assert stream.started.wait(30)
    assert appliance.process is not None

    appliance.process.send_signal(signal.SIGINT)

    assert appliance.process.wait(3 + 7) == 0
    stream.join(5)
    assert stream.done
    assert not any(child.is_running() for child in children)


def test_a_second_instance_on_the_same_state_directory_is_refused(
    appliance: ApplianceProcess, root, tiny_model_path
):
    second = appliance.cli("serve", str(tiny_model_path), "--port", "0", "--admin-port", "0")

    assert second.returncode != 0
    assert "already" in second.stderr + second.stdout
    same_ports = appliance.cli(
        "serve", "smollm2", "--port", str(appliance.instance["port"]), "--admin-port", "0"
    )
    assert "already runs with" in same_ports.stderr
    assert appliance.chat("hello").status_code == 200


def test_a_wrong_model_name_is_a_usage_error_in_one_line(root):
    appliance = ApplianceProcess(root, "smolm2")
    done = appliance.cli("serve", "smolm2", "--port", "0", "--admin-port", "0")

    assert done.returncode == 2
    assert "smollm2" in done.stderr
    assert len(done.stderr.strip().splitlines()) <= 4


def test_an_engine_that_cannot_start_says_why_and_does_not_loop(root):
    broken = root / "broken"
    broken.mkdir()
    (broken / "config.json").write_text('{"model_type": "llama", "architectures": ["Nothing"]}')
    appliance = ApplianceProcess(root, str(broken))
    appliance.start(ready=False)
    try:
        row = wait_until(
            lambda: (row := appliance.engine())["state"] in {"failed", "crash_loop"} and row, 40
        )
        assert row["state"] == "failed"
        assert row["reason"]
        assert row["restarts"] == 0
    finally:
        appliance.stop()
