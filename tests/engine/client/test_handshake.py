"""What is said of engines that start."""

import threading

import pytest

from engine.client.core_client import EngineStartError
from engine.client.handshake import Handshake
from engine.wire.messages import EngineDead, EngineHello, EngineProgress, EngineReady

HELLO = EngineHello(engine_id="e0", epoch=1, pid=77, started_ns=0)
READY = EngineReady(
    model="m",
    architecture="a",
    max_model_len=8,
    num_blocks=1,
    block_size=16,
    vocab_size=1,
    dtype="float32",
    device="cpu",
    kernel_backend="reference",
    weights_bytes=0,
    kv_cache_bytes=0,
    resident_bytes=0,
)


def weights(done: int, total: int) -> EngineProgress:
    return EngineProgress(phase="weights", done=done, total=total)


def test_a_time_out_tells_the_phase_of_each_engine_that_is_late():
    told: list[tuple[str, EngineProgress]] = []
    handshake = Handshake(("e0", "e1", "e2", "e3"), lambda *what: told.append(what))
    handshake.note("e0", 1, HELLO)
    handshake.note("e1", 1, weights(12_000_000, 270_000_000))
    handshake.note("e2", 1, READY)

    with pytest.raises(EngineStartError) as late:
        handshake.wait(0.01)

    assert str(late.value) == (
        "not ready within 0.01 s: e0: its process 77 runs; "
        "e1: phase weights, 12 of 270 MB; e3: its process was started"
    )
    assert told == [("e1", weights(12_000_000, 270_000_000))]


def test_it_ends_when_all_are_ready():
    handshake = Handshake(("e0", "e1"))
    waiting = threading.Thread(target=handshake.wait, args=(10.0,))
    waiting.start()
    handshake.note("e0", 1, READY)
    handshake.note("e1", 1, READY)
    waiting.join(5)

    assert not waiting.is_alive()
    handshake.died("e0", -9, "")
    handshake.wait(0)  # deaths after the start are the client's affair


def test_the_first_problem_is_told():
    handshake = Handshake(("e0",))
    handshake.note("e0", 1, EngineDead(reason="config_error", detail="no such model"))
    handshake.died("e0", 78, "the log")

    with pytest.raises(EngineStartError, match=r"^engine e0: config_error: no such model$"):
        handshake.wait(1)


def test_a_process_that_ends_without_a_word_shows_its_log():
    handshake = Handshake(("e0",))
    handshake.note("e0", 1, weights(0, 0))
    handshake.died("e0", -11, "Segmentation fault")

    with pytest.raises(
        EngineStartError, match=r"e0 ended with -11 \(phase weights, 0 of 0 bytes\)\nSeg"
    ):
        handshake.wait(1)


def test_a_start_can_be_given_up():
    handshake = Handshake(("e0",))
    handshake.give_up()

    with pytest.raises(EngineStartError, match="given up"):
        handshake.wait(10)
