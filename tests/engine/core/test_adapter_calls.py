"""Adapter calls and requests through the engine's loop, with a real store."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from engine.config import EngineConfig
from engine.core.adapter_reader import ReadAdapter
from engine.core.adapters import AdapterStore
from engine.kernels.reference.backend import ReferenceBackend
from engine.layers.lora import TensorAdapters
from engine.wire.calls import (
    AdapterList,
    AdapterState,
    AdapterUnloaded,
    CacheReset,
    ListAdapters,
    LoadAdapter,
    PinAdapter,
    ResetPrefixCache,
    Sleep,
    UnloadAdapter,
    Wake,
)
from engine.wire.messages import AddRequest, FinishReason, SamplingParams, UtilityReply
from tests.engine.core.adapter_bench import make_reader
from tests.engine.core.core_bench import CoreBench
from tests.engine.core.kv_runner import KvRunner, oracle
from tests.lora import make_adapter


class AdapterRunner(KvRunner):
    """A runner that forgets its adapters in sleep, as the real one does."""

    def __init__(self, model_dir: Path) -> None:
        super().__init__()
        self.config = EngineConfig(
            engine_id="e0",
            epoch=1,
            model="",
            model_name="m",
            clients=(),
            max_loras=2,
            max_cpu_loras=2,
        )
        self.reader = make_reader(model_dir)
        self.store: AdapterStore | None = None

    def adapter_store(self, on_ready: Callable[[], None]) -> AdapterStore:
        kernels = TensorAdapters(ReferenceBackend(), torch.device("cpu"))
        self.store = AdapterStore(self.config, self.reader, kernels, torch.device("cpu"), on_ready)
        return self.store

    def release(self, level):
        super().release(level)
        self.store.release_memory()

    def restore(self, progress):
        super().restore(progress)
        self.store.restore()


class Bench(CoreBench):
    """Waits for the reading thread as the process's loop does."""

    def __init__(self, model_dir: Path) -> None:
        self.woken = threading.Event()
        super().__init__(AdapterRunner(model_dir), max_loras=2)

    def wake(self) -> None:
        self.woken.set()

    def wait(self) -> None:
        assert self.woken.wait(30)
        self.woken.clear()
        self.turn()

    def answered(self, call_id: str) -> bool:
        return call_id in {reply.call_id for reply in self.bodies(UtilityReply)}

    def load(self, name: str, path: Path, call_id: str = "load") -> None:
        self.call(LoadAdapter(name=name, path=str(path)), call_id=call_id)
        while not self.answered(call_id):
            self.wait()

    def run_until(self, *names: str) -> None:
        """Run as the process's loop does: wait to be woken when there is nothing to compute."""
        while not all(self.outputs(name) for name in names):
            if self.core.has_work:
                self.turn()
            else:
                self.wait()
        self.run()

    def ask(self, request_id: str, adapter: str) -> None:
        sampling = SamplingParams(max_tokens=5, temperature=0.0)
        self.send(
            AddRequest(
                request_id=request_id,
                prompt_token_ids=(1, 2),
                sampling=sampling,
                arrival_ns=0,
                adapter=adapter,
            )
        )

    def text(self, call_id: str) -> str:
        (reply,) = [body for body in self.bodies(UtilityReply) if body.call_id == call_id]
        return reply.error.message


@pytest.fixture
def bench(tiny_model_path: Path) -> Bench:
    return Bench(tiny_model_path)


@pytest.fixture
def adapter(tmp_path: Path, tiny_model_path: Path) -> Path:
    return make_adapter(tmp_path / "a", rank=4, seed=1, model_dir=tiny_model_path)


def test_a_load_is_answered_when_requests_can_use_it(bench: Bench, adapter: Path):
    bench.load("a", adapter)

    state = bench.reply(AdapterState, "load")
    assert (state.name, state.rank, state.path) == ("a", 4, str(adapter))
    bench.ask("r", "a")
    bench.run()
    assert bench.tokens("r") == oracle([1, 2], 5)
    assert {share.adapter for batch in bench.runner.batches for share in batch} == {
        state.content_hash
    }
    bench.call(ListAdapters(), call_id="list")
    (listed,) = bench.reply(AdapterList, "list").adapters
    assert (listed.running_requests, listed.used_ns is not None) == (0, True)


def test_steps_go_on_while_an_adapter_is_read(bench: Bench, adapter: Path):
    gate = threading.Event()
    read = bench.runner.reader.read

    def slow(path: Path, should_stop: Callable[[], bool]) -> ReadAdapter:
        assert gate.wait(30)
        return read(path, should_stop)

    bench.runner.reader.read = slow
    bench.call(LoadAdapter(name="a", path=str(adapter)), call_id="load")
    bench.add("r", [1, 2])
    bench.run()

    assert bench.tokens("r") == oracle([1, 2], 5)
    assert not bench.answered("load")
    gate.set()
    bench.wait()
    assert bench.reply(AdapterState, "load").name == "a"


def test_a_request_for_an_unknown_adapter_is_refused(bench: Bench):
    bench.ask("r", "nobody")

    error = bench.last("r").error
    assert (error.code, "'nobody'" in error.message) == ("adapter_not_loaded", True)


def test_an_adapter_that_cannot_be_used_is_refused_with_what_is_wrong(bench: Bench, tmp_path: Path):
    bench.load("a", tmp_path / "nowhere")

    assert bench.refusal("load") == "invalid"
    assert "cannot be opened: No such file or directory" in bench.text("load")


def test_a_load_past_its_deadline_is_refused_and_changes_nothing(bench: Bench, adapter: Path):
    gate = threading.Event()
    read = bench.runner.reader.read
    bench.runner.reader.read = lambda path, stop: gate.wait(30) and read(path, lambda: False)
    bench.call(LoadAdapter(name="a", path=str(adapter)), call_id="late", timeout_s=0.01)
    while not bench.answered("late"):
        bench.turn()
    gate.set()
    bench.wait()

    assert bench.refusal("late") == "deadline_exceeded"
    bench.call(ListAdapters(), call_id="list")
    assert bench.reply(AdapterList, "list").adapters == ()


def test_unloading_tells_who_still_uses_it(bench: Bench, adapter: Path):
    bench.load("a", adapter)
    bench.ask("r", "a")
    bench.turn()

    bench.call(UnloadAdapter(name="a"), call_id="unload")
    bench.call(UnloadAdapter(name="a"), call_id="again")
    bench.run()

    assert bench.reply(AdapterUnloaded, "unload").running_requests == 1
    assert bench.refusal("again") == "invalid"
    assert bench.tokens("r") == oracle([1, 2], 5)
    assert bench.runner.store.num_bytes == 0


def test_pinning(bench: Bench, adapter: Path):
    bench.load("a", adapter)

    bench.call(PinAdapter(name="a"), call_id="pin")
    bench.call(PinAdapter(name="a", pinned=False), call_id="unpin")
    bench.call(PinAdapter(name="b"), call_id="unknown")

    pinned = bench.reply(AdapterState, "pin")
    assert (pinned.pinned, pinned.active) == (True, True)
    assert not bench.reply(AdapterState, "unpin").pinned
    assert bench.refusal("unknown") == "invalid"


def test_a_request_waits_for_an_adapter_that_has_left_memory_and_others_do_not(
    bench: Bench, tmp_path: Path, tiny_model_path: Path
):
    for seed, name in enumerate("abc"):
        path = make_adapter(tmp_path / name, rank=2, seed=seed, model_dir=tiny_model_path)
        bench.load(name, path, call_id=name)

    bench.ask("waits", "a")
    bench.ask("runs", "b")
    bench.run_until("waits", "runs")

    assert bench.tokens("waits") == bench.tokens("runs") == oracle([1, 2], 5)


def test_a_request_whose_adapter_cannot_come_back_fails_with_the_reason(
    bench: Bench, tmp_path: Path, tiny_model_path: Path
):
    for seed, name in enumerate("abc"):
        path = make_adapter(tmp_path / name, rank=2, seed=seed, model_dir=tiny_model_path)
        bench.load(name, path, call_id=name)
    make_adapter(tmp_path / "a", rank=2, seed=9, model_dir=tiny_model_path)

    bench.ask("r", "a")
    bench.run_until("r")

    last = bench.last("r")
    assert (last.finish_reason, last.error.code) == (FinishReason.ERROR, "adapter_not_loaded")
    assert "has changed since it was loaded" in last.error.message


def test_sleep_and_wake_keep_the_names(bench: Bench, adapter: Path):
    bench.load("a", adapter)
    bench.call(Sleep(level=2), call_id="sleep")
    assert bench.runner.store.num_bytes == 0

    bench.call(Wake(), call_id="wake")
    bench.ask("r", "a")
    bench.run_until("r")

    assert bench.tokens("r") == oracle([1, 2], 5)


def test_a_pending_load_is_refused_when_the_engine_ends(bench: Bench, adapter: Path):
    gate = threading.Event()
    bench.runner.reader.read = lambda _path, _stop: gate.wait(30)
    bench.call(LoadAdapter(name="a", path=str(adapter)), call_id="load")

    bench.core.utilities.shut_down()
    gate.set()

    assert bench.refusal("load") == "shutting_down"


def test_an_engine_without_adapters_says_so(adapter: Path):
    bench = CoreBench()

    bench.call(ListAdapters(), call_id="list")
    bench.call(LoadAdapter(name="a", path=str(adapter)), call_id="load")

    listed = bench.reply(AdapterList, "list")
    assert (listed.adapters, listed.max_loras) == ((), 0)
    assert bench.refusal("load") == "invalid"


def test_resetting_the_prefix_cache_tells_how_much_was_in_it():
    bench = CoreBench()
    bench.add("r", list(range(10, 30)))
    bench.run()

    bench.call(ResetPrefixCache(), call_id="first")
    bench.call(ResetPrefixCache(), call_id="second")

    assert bench.reply(CacheReset, "first").dropped_blocks > 0
    assert bench.reply(CacheReset, "second").dropped_blocks == 0
