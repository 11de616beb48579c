"""Adapters from the call to the token: the real runner inside the engine's loop."""

import gc
import threading
from pathlib import Path

import pytest
import torch

from engine.core.memory import resident_bytes
from engine.core.runner import TorchRunner
from engine.wire.calls import AdapterState, LoadAdapter, Sleep, SleepReport, UnloadAdapter, Wake
from engine.wire.messages import AddRequest, SamplingParams, UtilityReply
from tests.engine.core.core_bench import CoreBench
from tests.engine.models.harness import engine_config
from tests.lora import make_adapter


class TorchBench(CoreBench):
    """Waits for the reading thread as the process's loop does."""

    def __init__(self, model_dir: Path) -> None:
        torch.set_num_threads(1)
        self.woken = threading.Event()
        runner = TorchRunner(
            engine_config(model_dir, dtype="float32", kv_cache_bytes=8 << 20, max_loras=4)
        )
        runner.block_size, runner.batches = 16, []
        super().__init__(runner, max_loras=4)

    def wake(self) -> None:
        self.woken.set()

    def load(self, name: str, path: Path, call_id: str) -> AdapterState:
        self.call(LoadAdapter(name=name, path=str(path)), call_id=call_id)
        while call_id not in {reply.call_id for reply in self.bodies(UtilityReply)}:
            assert self.woken.wait(30)
            self.woken.clear()
            self.turn()
        return self.reply(AdapterState, call_id)

    def ask(self, request_id: str, adapter: str | None, **sampling: object) -> None:
        fields: dict = {"max_tokens": 12, "temperature": 0.0, "ignore_eos": True, **sampling}
        self.send(
            AddRequest(
                request_id=request_id,
                prompt_token_ids=tuple(range(40, 75)),
                sampling=SamplingParams(**fields),
                arrival_ns=0,
                adapter=adapter,
            )
        )

    def finish(self, *names: str) -> list[list[int]]:
        while not all(self.outputs(name) for name in names):
            if not self.core.has_work:
                assert self.woken.wait(30)
                self.woken.clear()
            self.turn()
        self.run()
        return [self.tokens(name) for name in names]


@pytest.fixture
def bench(tiny_model_path: Path) -> TorchBench:
    return TorchBench(tiny_model_path)


def test_adapters_share_batches_with_base_requests_and_each_text_is_that_of_its_own(
    bench: TorchBench, tmp_path: Path, tiny_model_path: Path
):
    for seed, name in enumerate("abc"):
        path = make_adapter(tmp_path / name, rank=8 + seed, seed=seed, model_dir=tiny_model_path)
        bench.load(name, path, name)
    who = [None, "a", "b", None, "c", "a"]
    alone = []
    for index, name in enumerate(who):
        bench.ask(f"alone-{index}", name, temperature=0.9, seed=index)
        bench.run()
        alone.append(bench.tokens(f"alone-{index}"))

    for index, name in enumerate(who):
        bench.ask(f"together-{index}", name, temperature=0.9, seed=index)
    bench.run()

    assert [bench.tokens(f"together-{index}") for index in range(len(who))] == alone
    bench.ask("greedy-base", None)
    bench.ask("greedy-a", "a")
    base, tuned = bench.finish("greedy-base", "greedy-a")
    assert base != tuned


def test_a_reload_under_the_same_name_never_meets_the_old_adapters_cache(
    bench: TorchBench, tmp_path: Path, tiny_model_path: Path
):
    def text(request_id: str) -> list[int]:
        bench.ask(request_id, "a")
        return bench.finish(request_id)[0]

    bench.load("a", make_adapter(tmp_path / "a", rank=4, seed=1, model_dir=tiny_model_path), "1")
    first, again = text("first"), text("again")
    bench.load("a", make_adapter(tmp_path / "a", rank=4, seed=2, model_dir=tiny_model_path), "2")
    second = text("second")
    fresh = TorchBench(tiny_model_path)
    fresh.load("a", tmp_path / "a", "only")
    fresh.ask("only", "a")

    assert first == again != second
    assert fresh.finish("only")[0] == second
    assert bench.last("again").cached_tokens > 0
    assert bench.last("second").cached_tokens == 0


def test_after_sleep_and_wake_an_adapter_gives_the_same_text(
    bench: TorchBench, tmp_path: Path, tiny_model_path: Path
):
    bench.load("a", make_adapter(tmp_path / "a", rank=64, seed=1, model_dir=tiny_model_path), "1")
    bench.ask("before", "a")
    before = bench.finish("before")

    bench.call(Sleep(level=1), call_id="sleep")
    assert bench.reply(SleepReport, "sleep").level == 1
    bench.call(Wake(), call_id="wake")
    bench.ask("after", "a")

    assert bench.finish("after") == before


def test_loading_and_unloading_leaves_memory_flat(
    bench: TorchBench, tmp_path: Path, tiny_model_path: Path
):
    path = make_adapter(tmp_path / "a", rank=128, seed=1, model_dir=tiny_model_path)

    def round_trip(turn: int) -> None:
        size = bench.load("a", path, f"load-{turn}").num_bytes
        assert size > 1_000_000
        bench.ask(f"r-{turn}", "a", max_tokens=2)
        bench.run()
        bench.call(UnloadAdapter(name="a"), call_id=f"unload-{turn}")

    for turn in range(5):
        round_trip(turn)
    gc.collect()
    before = resident_bytes(torch.device("cpu"))
    for turn in range(5, 35):
        round_trip(turn)
    gc.collect()
    assert resident_bytes(torch.device("cpu")) - before < 4_000_000
