"""Sleep gives memory back, and nobody who uses the appliance needs to care."""

import json
import time

import psutil
import pytest

from tests.integration.appliance_process import ApplianceProcess, wait_until
from tests.integration.streams import Stream, run_all

pytestmark = pytest.mark.process

QUESTION = "What is the capital of Italy?"


def resident_bytes(appliance: ApplianceProcess) -> int:
    return psutil.Process(appliance.engine()["pid"]).memory_info().rss


def greedy(appliance: ApplianceProcess) -> str:
    return appliance.chat(QUESTION).json()["choices"][0]["message"]["content"]


@pytest.mark.parametrize("level", ["1", "2"])
def test_sleep_frees_the_weights_and_a_request_wakes_the_engine(
    smollm2_appliance: ApplianceProcess, level: str
):
    appliance = smollm2_appliance
    before_text, before_bytes = greedy(appliance), resident_bytes(appliance)

    asleep = appliance.cli("sleep", "e0", "--level", level, "-o", "json")

    assert asleep.returncode == 0, asleep.stderr
    result = json.loads(asleep.stdout)["result"]
    weights_bytes = appliance.engine()["weights_bytes"]
    fell = before_bytes - resident_bytes(appliance)
    assert fell >= 0.8 * weights_bytes
    assert result["freed_bytes"] >= 0.8 * weights_bytes
    assert appliance.engine()["state"] == "asleep"

    assert greedy(appliance) == before_text
    assert appliance.engine()["state"] == "ready"


def test_wake_is_a_command_and_repeats_are_no_ops(smollm2_appliance: ApplianceProcess):
    for command in ("sleep", "sleep", "wake", "wake"):
        done = smollm2_appliance.cli(command, "e0")
        assert done.returncode == 0, done.stderr
    assert smollm2_appliance.engine()["state"] == "ready"


def test_a_stream_that_waits_for_the_wake_is_kept_open(smollm2_appliance: ApplianceProcess):
    assert smollm2_appliance.cli("sleep", "e0").returncode == 0
    stream = Stream(smollm2_appliance, "smollm2", QUESTION, max_tokens=8)

    run_all([stream])

    assert stream.done
    assert stream.text


def four_streams(appliance: ApplianceProcess, max_tokens: int) -> list[Stream]:
    streams = [
        Stream(appliance, "smollm2", f"Tell story {k}.", max_tokens=max_tokens, ignore_eos=True)
        for k in range(4)
    ]
    for stream in streams:
        stream.start()
    for stream in streams:
        assert stream.started.wait(60)
    return streams


def test_sleep_in_wait_mode_lets_four_streams_finish(smollm2_appliance: ApplianceProcess):
    streams = four_streams(smollm2_appliance, 40)

    asleep = smollm2_appliance.cli("sleep", "e0", "--mode", "wait")

    assert asleep.returncode == 0, asleep.stderr
    for stream in streams:
        stream.join(10)
        assert stream.done
        assert stream.finish_reason == "length"
    assert smollm2_appliance.engine()["state"] == "asleep"
    assert smollm2_appliance.cli("wake", "e0").returncode == 0


def test_sleep_in_abort_mode_ends_four_streams_with_an_error_frame(
    smollm2_appliance: ApplianceProcess,
):
    streams = four_streams(smollm2_appliance, 1000)

    started = time.monotonic()
    asleep = smollm2_appliance.cli("sleep", "e0", "--mode", "abort")

    assert asleep.returncode == 0, asleep.stderr
    assert time.monotonic() - started < 20
    for stream in streams:
        stream.join(10)
        assert not stream.is_alive()
        assert not stream.done
        assert stream.error is not None
        assert stream.error["code"] == "engine_asleep"
    assert smollm2_appliance.cli("wake", "e0").returncode == 0


def test_aliases_of_vllm_sleep_and_wake(smollm2_appliance: ApplianceProcess):
    appliance = smollm2_appliance
    assert appliance.admin("/sleep", "POST", params={"level": 1}).status_code == 200
    assert appliance.admin("/is_sleeping").json()["is_sleeping"] is True
    assert appliance.admin("/wake_up", "POST").status_code == 200
    assert appliance.admin("/is_sleeping").json()["is_sleeping"] is False
    wait_until(lambda: appliance.engine()["state"] == "ready")


def test_reject_answers_503_at_once_while_the_engine_sleeps(root, tiny_model_path):
    appliance = ApplianceProcess(root, str(tiny_model_path), "--on-asleep", "reject")
    appliance.start()
    try:
        assert appliance.chat("hello").status_code == 200
        assert appliance.cli("sleep", "e0").returncode == 0

        answer = appliance.chat("hello")

        assert answer.status_code == 503
        assert answer.json()["error"]["code"] == "engine_asleep"
        assert float(answer.headers["retry-after"]) > 0
        assert appliance.engine()["state"] == "asleep"
    finally:
        appliance.stop()
