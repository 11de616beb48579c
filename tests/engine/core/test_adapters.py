"""The adapter store: names, contents, memory, pins, leases, slots, and sleep."""

import gc
import threading
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from engine.core.adapter_content import AdapterName, Lease
from engine.core.adapter_jobs import AdapterJobs
from engine.core.adapter_memory import RETRY_NS, AdapterMemory
from engine.core.adapter_reader import ReadAdapter
from engine.core.adapter_slots import AdapterSlots
from engine.core.adapters import MAX_LOADS
from engine.core.batch import AdapterRefusedError
from engine.kernels.reference.backend import ReferenceBackend
from engine.layers.lora import LowRankUpdate
from tests.engine.core.adapter_bench import AdapterBench
from tests.lora import make_adapter

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path, tiny_model_path: Path) -> Write:
    """Writes an adapter into the directory of that name."""

    def write(name: str, seed: int | None = None, **options: object) -> Path:
        fields: dict = {"rank": 2, "targets": ("q_proj",), **options}
        own_seed = sum(name.encode()) if seed is None else seed
        return make_adapter(tmp_path / name, seed=own_seed, model_dir=tiny_model_path, **fields)

    return write


@pytest.fixture
def bench(tiny_model_path: Path) -> AdapterBench:
    return AdapterBench(tiny_model_path, max_loras=2, max_cpu_loras=3)


def fill(bench: AdapterBench, write: Write, names: str) -> None:
    for name in names:
        bench.load(name, write(name))


# ---------------------------------------------------------------- loading


def test_a_loaded_adapter_is_listed_with_its_facts(bench: AdapterBench, write: Write):
    path = write("a", rank=5, targets=("q_proj", "down_proj"))

    state = bench.load("a", path)

    assert (state.name, state.path, state.rank) == ("a", str(path), 5)
    assert state.targets == ("down_proj", "q_proj")
    assert state.num_bytes == bench.store.num_bytes > 0
    assert (state.pinned, state.active, state.resident, state.running_requests) == (
        False,
        False,
        True,
        0,
    )
    assert bench.store.list().adapters == (state,)
    assert (bench.store.list().max_loras, bench.store.list().max_cpu_loras) == (2, 3)
    assert bench.store.counts.loaded == 1


def test_the_same_content_again_is_a_no_op(bench: AdapterBench, write: Write):
    first = bench.load("a", write("a"))
    lease = bench.lease("a")

    again = bench.load("a", write("a"))

    assert (again.content_hash, again.loaded_ns) == (first.content_hash, first.loaded_ns)
    assert again.running_requests == 1
    assert bench.state("a").content_hash == lease.content_hash
    assert bench.store.counts.loaded == 1


def test_other_content_under_a_name_is_for_new_requests_only(bench: AdapterBench, write: Write):
    bench.load("a", write("a", seed=1))
    old = bench.lease("a")

    bench.load("a", write("a", seed=2))
    new = bench.lease("a")

    assert old.content_hash != new.content_hash
    assert old.is_ready
    assert new.is_ready
    step = bench.store.for_step([(0, 1, old.content_hash), (1, 1, new.content_hash)], 2)
    assert step is not None
    assert bench.state("a").running_requests == 1
    memory = bench.store.num_bytes
    old.release()
    assert bench.store.num_bytes == memory / 2, "the old content goes with its last request"
    with pytest.raises(LookupError):
        bench.store.for_step([(0, 1, old.content_hash)], 1)


def test_two_names_of_one_content_share_its_memory(bench: AdapterBench, write: Write):
    path = write("a")
    first = bench.load("a", path)
    second = bench.load("b", path)

    assert first.content_hash == second.content_hash
    assert bench.store.num_bytes == first.num_bytes
    bench.store.unload("a")
    assert bench.ready_lease("b").is_ready


def test_loads_of_one_name_take_effect_in_the_order_of_their_calls(
    bench: AdapterBench, write: Write
):
    paths = [write(f"v{index}") for index in range(6)]
    loads = [bench.begin("a", path) for path in paths]

    states = [bench.finish(load) for load in loads]

    hashes = [state.content_hash for state in states]
    assert len(set(hashes)) == 6
    assert bench.state("a").content_hash == hashes[-1]
    assert bench.resident() == {"a"}


def test_a_load_that_fails_changes_nothing(bench: AdapterBench, write: Write, tmp_path: Path):
    before = bench.load("a", write("a"))

    assert "cannot be opened" in bench.refusal("a", tmp_path / "nowhere")
    assert "rank 200 is too high" in bench.refusal("a", write("large", rank=200))

    assert bench.state("a") == before


def test_an_abandoned_load_changes_nothing_even_when_it_has_been_read(
    bench: AdapterBench, write: Write
):
    loading = bench.begin("a", write("a"))
    while not loading.job.is_done:
        assert bench._ready.wait(30)
    loading.abandon()
    bench.store.advance()

    assert (loading.state, loading.refusal) == (None, None)
    assert bench.store.lease("a") is None
    assert bench.store.num_bytes == 0


def test_too_many_loads_at_once_are_refused(bench: AdapterBench, write: Write):
    path = write("a")
    loads = [bench.begin(f"n{index}", path) for index in range(MAX_LOADS)]

    with pytest.raises(AdapterRefusedError, match="are being loaded") as caught:
        bench.begin("one more", path)

    assert caught.value.code == "busy"
    for loading in loads:
        bench.finish(loading)
    assert bench.load("one more", path)


@pytest.mark.parametrize("name", ["", "x" * 257])
def test_a_name_has_a_sane_length(bench: AdapterBench, write: Write, name: str):
    with pytest.raises(AdapterRefusedError, match="1 to 256 characters"):
        bench.begin(name, write("a"))


# ---------------------------------------------------------------- memory


def test_the_least_recently_used_one_leaves_memory_and_comes_back_when_asked_for(
    bench: AdapterBench, write: Write
):
    fill(bench, write, "abc")
    bench.lease("a").release()
    before = bench.store.num_bytes

    bench.load("d", write("d"))

    assert bench.resident() == {"a", "c", "d"}
    assert bench.store.num_bytes == before
    lease = bench.lease("b")
    assert not lease.is_ready
    while not lease.is_ready:
        bench.turn()
    assert bench.resident() == {"a", "b", "d"}
    assert bench.store.for_step([(0, 1, lease.content_hash)], 1) is not None


def test_nothing_that_is_pinned_or_in_use_leaves_memory(bench: AdapterBench, write: Write):
    bench.load("pinned", write("pinned"), pinned=True)
    fill(bench, write, "ab")
    leases = [bench.lease("a"), bench.lease("b")]

    refusal = bench.refusal("c", write("c"))

    assert refusal == "there is no room: all 3 adapters in memory are pinned or in use"
    assert bench.store.lease("c") is None
    leases[0].release()
    bench.load("c", write("c"))
    assert bench.resident() == {"pinned", "b", "c"}


def test_a_replaced_adapter_makes_room_for_its_successor(bench: AdapterBench, write: Write):
    fill(bench, write, "abc")

    bench.load("c", write("c", seed=99))

    assert bench.resident() == {"a", "b", "c"}


def test_what_is_asked_for_while_all_are_in_use_waits_for_the_first_that_is_let_go(
    bench: AdapterBench, write: Write
):
    fill(bench, write, "abcd")
    held = [bench.ready_lease(name) for name in "bcd"]
    waiting, other = bench.lease("a"), bench.lease("a")
    bench.store.advance()
    assert not waiting.is_ready
    assert waiting.fault is None

    held[1].release()
    while not waiting.is_ready:
        bench.turn()

    assert other.is_ready
    assert bench.resident() == {"a", "b", "d"}


def test_a_request_that_gives_up_waiting_takes_no_place(bench: AdapterBench, write: Write):
    fill(bench, write, "abcd")
    held = [bench.ready_lease(name) for name in "bcd"]
    bench.lease("a").release()

    held[0].release()
    bench.store.advance()

    assert bench.resident() == {"b", "c", "d"}


def test_a_request_that_could_wait_for_ever_fails(tiny_model_path: Path, write: Write):
    bench = AdapterBench(tiny_model_path, max_loras=2, max_cpu_loras=2)
    fill(bench, write, "abc")
    bench.store.pin("b", pinned=True)
    bench.store.pin("c", pinned=True)

    lease = bench.lease("a")

    assert lease.fault is not None
    assert lease.fault.code == "adapter_not_loaded"
    assert "no room" in lease.fault.message


def test_files_that_have_changed_are_not_taken_for_the_loaded_ones(
    bench: AdapterBench, write: Write, tmp_path: Path
):
    fill(bench, write, "abcd")
    write("a", seed=77)

    lease = bench.ready_lease("a")

    assert not lease.is_ready
    assert lease.fault is not None
    assert lease.fault.code == "adapter_not_loaded"
    assert "'a'" in lease.fault.message
    assert "has changed since it was loaded: load it again" in lease.fault.message
    lease.release()
    bench.load("a", tmp_path / "a")
    assert bench.ready_lease("a").is_ready


def test_files_that_have_gone_are_tried_again_only_after_a_while(
    bench: AdapterBench, write: Write, tmp_path: Path
):
    fill(bench, write, "abcd")
    (tmp_path / "a").rename(tmp_path / "away")
    assert "cannot be opened" in bench.ready_lease("a").fault.message
    (tmp_path / "away").rename(tmp_path / "a")

    assert bench.lease("a").fault is not None, "at once, without reading"
    bench.now_ns += RETRY_NS
    assert bench.ready_lease("a").is_ready


# ---------------------------------------------------------------- unloading


def test_an_unloaded_adapter_serves_its_requests_to_their_end(bench: AdapterBench, write: Write):
    bench.load("a", write("a"))
    lease, other = bench.lease("a"), bench.lease("a")

    unloaded = bench.store.unload("a")

    assert (unloaded.name, unloaded.running_requests) == ("a", 2)
    assert bench.store.lease("a") is None
    assert bench.store.list().adapters == ()
    assert bench.store.for_step([(0, 1, lease.content_hash)], 1) is not None
    lease.release()
    lease.release()
    assert bench.store.num_bytes > 0
    other.release()
    assert bench.store.num_bytes == 0
    assert bench.store.counts.active == 0


def test_memory_really_goes_with_the_last_lease(bench: AdapterBench, write: Write):
    bench.load("a", write("a"))
    lease = bench.lease("a")
    step = bench.store.for_step([(0, 1, lease.content_hash)], 1)
    down = weakref.ref(step._groups[0].updates["layers.0.qkv"][0].down)
    del step

    bench.store.unload("a")
    lease.release()

    gc.collect()
    assert down() is None


def test_unknown_names_and_names_that_are_being_loaded_are_not_unloaded(
    bench: AdapterBench, write: Write
):
    loading = bench.begin("a", write("a"))

    with pytest.raises(AdapterRefusedError, match="'a' is being loaded") as busy:
        bench.store.unload("a")
    with pytest.raises(AdapterRefusedError, match="no adapter is loaded under the name 'b'"):
        bench.store.unload("b")
    with pytest.raises(AdapterRefusedError, match="no adapter is loaded under the name 'b'"):
        bench.store.pin("b", pinned=True)

    assert busy.value.code == "busy"
    bench.finish(loading)
    bench.store.unload("a")


# ---------------------------------------------------------------- slots and pins


def use(bench: AdapterBench, names: str) -> None:
    leases = [bench.ready_lease(name) for name in names]
    rows = [(row, 1, lease.content_hash) for row, lease in enumerate(leases)]
    assert bench.store.for_step(rows, len(rows)) is not None
    for lease in leases:
        lease.release()


def test_the_least_recently_used_adapter_gives_up_its_slot(bench: AdapterBench, write: Write):
    fill(bench, write, "abc")
    use(bench, "ab")
    use(bench, "a")

    use(bench, "c")

    assert bench.active() == {"a", "c"}
    assert bench.store.counts.active == 2
    assert bench.resident() == {"a", "b", "c"}


def test_a_pinned_adapter_keeps_its_slot_while_a_step_leaves_it_one(
    bench: AdapterBench, write: Write
):
    fill(bench, write, "abc")
    bench.store.pin("a", pinned=True)
    assert bench.active() == {"a"}

    for name in "bcbc":
        use(bench, name)
        assert bench.active() == {"a", name}
    use(bench, "bc")
    assert bench.active() == {"b", "c"}
    bench.store.pin("a", pinned=False)
    assert not bench.state("a").pinned


def test_there_are_no_more_pins_than_slots(bench: AdapterBench, write: Write):
    fill(bench, write, "ab")
    bench.store.pin("a", pinned=True)
    bench.store.pin("b", pinned=True)
    bench.store.pin("b", pinned=True)
    path = write("c")

    with pytest.raises(AdapterRefusedError, match="all 2 slots have pinned adapters"):
        bench.begin("c", path, pinned=True)
    bench.load("c", path)
    with pytest.raises(AdapterRefusedError, match="all 2 slots have pinned adapters"):
        bench.store.pin("c", pinned=True)
    bench.store.unload("a")
    assert bench.store.pin("c", pinned=True).pinned


def test_pins_that_race_for_the_last_slot_are_counted_when_they_are_read(
    bench: AdapterBench, write: Write
):
    loads = [bench.begin(name, write(name), pinned=True) for name in "abc"]

    answers = [bench.finish(loading) for loading in loads]

    assert answers[2] == "all 2 slots have pinned adapters"
    assert bench.active() == {"a", "b"}


def test_a_pin_stays_with_the_name_when_its_content_is_replaced(bench: AdapterBench, write: Write):
    bench.load("a", write("a"), pinned=True)

    assert bench.load("a", write("a", seed=5)).pinned
    assert bench.load("a", write("a", seed=5)).pinned
    assert bench.state("a").active


def test_more_adapters_in_a_step_than_slots_is_an_error_of_that_step(
    bench: AdapterBench, write: Write
):
    fill(bench, write, "abc")
    rows = [(row, 1, bench.lease(name).content_hash) for row, name in enumerate("abc")]

    with pytest.raises(LookupError, match="3 adapters, there are 2"):
        bench.store.for_step(rows, 3)
    assert bench.store.for_step(rows[:2], 3) is not None


# ---------------------------------------------------------------- sleep


def test_sleep_gives_all_memory_back_and_wake_brings_it_on_demand(
    bench: AdapterBench, write: Write
):
    fill(bench, write, "ab")
    bench.store.pin("b", pinned=True)
    use(bench, "a")
    before = bench.store.list().adapters

    bench.store.release_memory()

    assert bench.store.num_bytes == 0
    assert bench.store.counts.active == 0
    assert bench.store.counts.loaded == 2
    bench.store.restore()
    while not bench.state("b").resident:
        bench.turn()
    assert bench.resident() == bench.active() == {"b"}
    use(bench, "a")
    after = bench.store.list().adapters
    assert [state.content_hash for state in after] == [state.content_hash for state in before]


def test_a_load_while_asleep_is_checked_and_takes_memory_only_after_the_wake(
    bench: AdapterBench, write: Write, tmp_path: Path
):
    bench.store.release_memory()

    state = bench.load("a", write("a"), pinned=True)
    assert "cannot be opened" in bench.refusal("b", tmp_path / "nowhere")

    assert (state.resident, bench.store.num_bytes) == (False, 0)
    bench.store.restore()
    while not bench.state("a").resident:
        bench.turn()
    assert bench.active() == {"a"}


def test_a_file_that_changed_during_sleep_is_a_fault_of_those_who_name_it(
    bench: AdapterBench, write: Write
):
    fill(bench, write, "ab")
    bench.store.release_memory()
    write("a", seed=3)
    bench.store.restore()

    assert "has changed" in bench.ready_lease("a").fault.message
    assert bench.ready_lease("b").is_ready


def test_a_read_that_sleep_interrupts_is_done_after_the_wake(bench: AdapterBench, write: Write):
    fill(bench, write, "abcd")
    lease = bench.lease("a")

    bench.store.release_memory()
    bench.store.advance()
    assert bench.store.num_bytes == 0
    bench.store.restore()

    while not lease.is_ready:
        bench.turn()


# ---------------------------------------------------------------- threads


def test_nothing_is_read_in_the_callers_thread(
    bench: AdapterBench, write: Write, monkeypatch: pytest.MonkeyPatch
):
    readers: list[str] = []
    reader = bench.store._reader
    read = reader.read

    def noted(path: Path, should_stop: Callable[[], bool]) -> ReadAdapter:
        readers.append(threading.current_thread().name)
        return read(path, should_stop)

    monkeypatch.setattr(reader, "read", noted)
    fill(bench, write, "abcd")
    bench.ready_lease("a")

    assert readers == ["adapters"] * 5


def test_what_kernels_find_out_of_a_shape_is_found_out_in_the_reading_thread(
    tiny_model_path: Path, write: Write
):
    asked: list[tuple[str, torch.Size, torch.Size]] = []

    class Kernels(ReferenceBackend):
        def low_rank(
            self, rows: torch.Tensor, down: torch.Tensor, up: torch.Tensor
        ) -> torch.Tensor:
            asked.append((threading.current_thread().name, down.shape, up.shape))
            return super().low_rank(rows, down, up)

    bench = AdapterBench(tiny_model_path, Kernels())
    state = bench.load("a", write("a", targets=("q_proj", "k_proj", "down_proj")))
    bench.lease("a")
    adapters = bench.store.for_step([(0, 1, state.content_hash)], 1)

    assert adapters is not None
    before = set(asked)
    assert {thread for thread, *_ in before} == {"adapters"}
    for name in ("layers.0.qkv", "layers.0.down"):
        adapters.apply(name, torch.zeros(1, 64 if "qkv" in name else 128), torch.zeros(1, 256))
    assert {("adapters", *shapes) for _, *shapes in asked} == before


def test_an_error_while_a_pinned_adapter_returns_ends_its_requests_and_nothing_else(
    tmp_path: Path,
):
    nowhere = torch.device("xpu")  # a copy to it fails, as on a device whose memory is full
    update = LowRankUpdate(0, torch.zeros(1, 8), torch.zeros(8, 1))
    read = ReadAdapter("content", 1, ("q_proj",), update.num_bytes, {"layers.0.qkv": [update]})
    ready = threading.Event()
    jobs = AdapterJobs(lambda _path, _should_stop: read, ready.set)
    memory = AdapterMemory(2, AdapterSlots(2, nowhere), jobs, lambda: 0)
    memory.release_all()
    content = memory.put(read, tmp_path, None)
    name = AdapterName("x", content, 0)
    content.pinned_names.add("x")
    lease = Lease(name, memory.settle)
    memory.restore()
    assert ready.wait(30)

    memory.advance()

    assert lease.fault is not None
    assert "could not be brought into a slot" in lease.fault.message
    assert memory.num_bytes == 0
    jobs.close()


def test_an_error_nobody_expects_is_a_refusal_and_the_thread_goes_on(
    bench: AdapterBench, write: Write, monkeypatch: pytest.MonkeyPatch
):
    reader = bench.store._reader
    with monkeypatch.context() as patch:
        patch.setattr(reader, "read", lambda _path, _stop: 1 / 0)
        assert "could not be read: division by zero" in bench.refusal("a", write("a"))

    assert bench.load("a", write("a"))


def test_close_ends_the_thread_and_what_it_reads(bench: AdapterBench, write: Write):
    bench.load("a", write("a"))
    thread = bench.store._jobs._thread
    bench.begin("b", write("b"))

    bench.store.close()

    thread.join(30)
    assert not thread.is_alive()


def test_random_traffic_never_breaks_the_books(tiny_model_path: Path, write: Write):
    bench = AdapterBench(tiny_model_path, max_loras=2, max_cpu_loras=3)
    store, names = bench.store, "abcdef"
    paths = {name: write(name) for name in names}
    generator = torch.Generator().manual_seed(0)
    leases: list = []
    for _ in range(400):
        choice, which = torch.randint(0, 100, (2,), generator=generator).tolist()
        name = names[which % len(names)]
        try:
            if choice < 25:
                bench.begin(name, paths[name], pinned=choice < 3)
            elif choice < 60:
                leases.append(store.lease(name))
            elif choice < 85 and leases:
                lease = leases.pop(which % len(leases))
                if lease is not None:
                    lease.release()
            elif choice < 90:
                store.unload(name)
            elif choice < 94:
                store.pin(name, pinned=choice < 92)
            elif choice < 96:
                bench.turn() if store._loading else None
        except AdapterRefusedError:
            pass
        store.advance()
        held = [lease for lease in leases if lease is not None and lease.is_ready]
        for lease in held[:2]:
            store.for_step([(0, 1, lease.content_hash)], 1)
        resident = {s.content_hash for s in store.list().adapters if s.resident}
        assert len(resident | {lease.content_hash for lease in held}) <= 3
        assert store.counts.active <= 2
    for lease in leases:
        if lease is not None:
            lease.release()
    while store._loading or store._memory._reading:
        bench.turn()
    for name in [state.name for state in store.list().adapters]:
        assert store.list().adapters[0].running_requests == 0
        store.unload(name)
    assert store.num_bytes == 0
    assert store._memory.contents == {}
    assert not store._memory._waiting
