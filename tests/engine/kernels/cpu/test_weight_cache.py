"""Packed weights on disk: what is found there is what would be packed, whatever happens to it."""

import logging
import mmap
import os
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from gguf import GGMLQuantizationType as Kind

from engine.checkpoint.checkpoint import Checkpoint, open_checkpoint
from engine.kernels.cpu import content_hash, weight_file
from engine.kernels.cpu.content_hash import ContentHashes
from engine.kernels.cpu.loading import CpuWeightLoader
from engine.kernels.cpu.quantization import choose_quantization
from engine.kernels.cpu.weight_cache import WeightCache
from engine.kernels.cpu.weight_file import CachedBlock
from engine.models.parameters import Weights
from engine.models.registry import family_of
from tests.engine.checkpoint.gguf_files import write_gguf

GIB = 1 << 30


def load(
    checkpoint: Checkpoint, directory: Path, asked="auto", max_bytes: int = GIB
) -> tuple[Weights, CpuWeightLoader]:
    choice = choose_quantization(asked, checkpoint.tensors.values())
    cache = WeightCache(directory, max_bytes)
    loader = CpuWeightLoader(checkpoint, choice, cache, 2, lambda _done, _total: None)
    return loader.load(family_of(checkpoint.config).parameters(checkpoint.config)), loader


def state(path: Path, directory: Path, asked="auto", max_bytes: int = GIB) -> str:
    return load(open_checkpoint(path), directory, asked, max_bytes)[1].cache_state


def content(weights: Weights) -> dict[str, torch.Tensor]:
    panels = {
        f"{name}.{at}": segment.panels
        for name, weight in weights.linears.items()
        for at, segment in enumerate(weight.content.segments)
    }
    return panels | dict(weights.tensors)


def assert_same(one: Weights, other: Weights) -> None:
    ours, theirs = content(one), content(other)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def files(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.weights"))


@pytest.fixture
def model(tiny_model_path: Path, tmp_path: Path) -> Path:
    return write_gguf(tiny_model_path, tmp_path / "m.gguf", Kind.Q4_1)


@pytest.fixture
def cache_dir(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "weights"


@pytest.mark.parametrize("asked", ["auto", "none", "int8", "w4"])
def test_the_second_start_maps_what_the_first_one_packed(model: Path, cache_dir: Path, asked: str):
    checkpoint = open_checkpoint(model)
    packed, first = load(checkpoint, cache_dir, asked)
    mapped, second = load(checkpoint, cache_dir, asked)

    assert (first.cache_state, second.cache_state) == ("miss", "hit")
    assert_same(packed, mapped)
    assert first.conversion == second.conversion
    assert first.quantization_reason == second.quantization_reason
    assert all(tensor.data_ptr() % 64 == 0 for tensor in content(mapped).values())
    assert mapped.linears["head"] is mapped.linears["embedding"]


def test_only_the_owner_can_read_the_files(model: Path, cache_dir: Path):
    state(model, cache_dir)

    assert stat.S_IMODE(cache_dir.stat().st_mode) == 0o700
    (file,) = files(cache_dir)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_each_choice_and_each_model_has_a_file_of_its_own(
    model: Path, tiny_model_path: Path, tmp_path: Path, cache_dir: Path
):
    other = write_gguf(tiny_model_path, tmp_path / "other.gguf", Kind.Q4_0)

    for path, asked in [(model, "auto"), (model, "int8"), (other, "auto"), (other, "none")]:
        assert state(path, cache_dir, asked) == "miss"

    assert len(files(cache_dir)) == 4
    assert state(model, cache_dir, "int8") == "hit"


def test_a_copy_of_a_model_uses_the_same_weights(model: Path, cache_dir: Path, tmp_path: Path):
    state(model, cache_dir)
    copy = tmp_path / "copy.gguf"
    copy.write_bytes(model.read_bytes())

    assert state(copy, cache_dir) == "hit"


def test_a_model_that_changed_in_place_never_gets_old_weights(
    model: Path, cache_dir: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(content_hash, "_SETTLED_NS", -1)  # remembered at once
    checkpoint = open_checkpoint(model)
    old, _ = load(checkpoint, cache_dir)
    assert load(checkpoint, cache_dir)[1].cache_state == "hit"
    before, entry = model.stat(), checkpoint.tensors["model.layers.0.mlp.down_proj.weight"]
    with model.open("r+b") as file:
        file.seek(entry.offset + 4)  # numbers of the first block, behind its scales
        file.write(b"\x12\x34\x56\x78")
    os.utime(model, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert model.stat().st_size == before.st_size
    assert model.stat().st_mtime_ns == before.st_mtime_ns

    new, loader = load(open_checkpoint(model), cache_dir)

    assert loader.cache_state == "miss"
    name = "layers.0.down.0"
    assert not torch.equal(content(new)[name], content(old)[name])


def test_a_known_model_is_not_read_again(
    model: Path, cache_dir: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(content_hash, "_SETTLED_NS", -1)
    pieces: list[None] = []

    def at_work() -> None:
        pieces.append(None)

    digest = ContentHashes(cache_dir).of(model, at_work)
    assert pieces
    pieces.clear()

    assert ContentHashes(cache_dir).of(model, at_work) == digest
    assert not pieces


def test_a_model_with_a_date_in_the_future_is_remembered_too(model: Path, cache_dir: Path):
    os.utime(model, (4e9, 4e9))
    deadline_s = time.monotonic() + 10
    while not list(cache_dir.glob("*.hash")):  # once the change of its times has settled
        assert time.monotonic() < deadline_s
        ContentHashes(cache_dir).of(model, lambda: None)
        time.sleep(0.2)


def test_a_hash_that_others_may_have_written_is_not_believed(
    model: Path, cache_dir: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(content_hash, "_SETTLED_NS", -1)
    digest = ContentHashes(cache_dir).of(model, lambda: None)
    (memory,) = cache_dir.glob("*.hash")
    memory.write_bytes(bytes(32))
    memory.chmod(0o666)

    assert ContentHashes(cache_dir).of(model, lambda: None) == digest


def test_the_hash_of_a_file_that_changed_just_now_is_not_remembered(model: Path, cache_dir: Path):
    model.touch()

    ContentHashes(cache_dir).of(model, lambda: None)

    assert not list(cache_dir.glob("*.hash"))


def truncate(file: Path) -> None:
    os.truncate(file, file.stat().st_size - 1)


def empty(file: Path) -> None:
    file.write_bytes(b"")


def lengthen(file: Path) -> None:
    with file.open("ab") as stream:
        stream.write(b"x")


def flip(offset: int) -> Callable[[Path], None]:
    def change(file: Path) -> None:
        changed = bytearray(file.read_bytes())
        changed[offset] ^= 1
        file.write_bytes(changed)

    change.__name__ = f"flip_{offset}"
    return change


def other_version(file: Path) -> None:
    file.write_bytes(b"QDPACK00" + file.read_bytes()[8:])


@pytest.mark.parametrize(
    "damage",
    [truncate, empty, lengthen, other_version, flip(8), flip(13), flip(30), flip(60), flip(200)],
    ids=lambda damage: damage.__name__,
)
def test_a_damaged_file_is_ignored_logged_and_replaced(
    damage: Callable[[Path], None],
    model: Path,
    cache_dir: Path,
    caplog: pytest.LogCaptureFixture,
):
    good, _ = load(open_checkpoint(model), cache_dir)
    kept = {name: tensor.clone() for name, tensor in content(good).items()}
    del good  # its pages are those of the file
    (file,) = files(cache_dir)
    damage(file)
    caplog.set_level(logging.WARNING)

    again, loader = load(open_checkpoint(model), cache_dir)

    assert loader.cache_state == "miss"
    assert "are not used" in caplog.text
    assert all(torch.equal(kept[name], tensor) for name, tensor in content(again).items())
    assert state(model, cache_dir) == "hit"


def test_weights_of_another_plan_under_the_same_name_are_not_used(
    model: Path, cache_dir: Path, caplog: pytest.LogCaptureFixture
):
    state(model, cache_dir)
    state(model, cache_dir, "int8")
    one, other = files(cache_dir)
    one_content, other_content = one.read_bytes(), other.read_bytes()
    one.write_bytes(other_content)
    other.write_bytes(one_content)

    assert state(model, cache_dir) == "miss"
    assert "do not fit this model" in caplog.text
    assert state(model, cache_dir) == "hit"


def test_a_file_that_others_may_have_written_is_not_used(
    model: Path, cache_dir: Path, caplog: pytest.LogCaptureFixture
):
    state(model, cache_dir)
    files(cache_dir)[0].chmod(0o666)

    assert state(model, cache_dir) == "miss"
    assert "others may have written it" in caplog.text
    assert stat.S_IMODE(files(cache_dir)[0].stat().st_mode) == 0o600


@pytest.mark.timeout(60)
def test_a_pipe_in_the_place_of_weights_does_not_block_a_start(
    model: Path, cache_dir: Path, caplog: pytest.LogCaptureFixture
):
    state(model, cache_dir)
    (file,) = files(cache_dir)
    file.unlink()
    os.mkfifo(file)

    assert state(model, cache_dir) == "miss"
    assert "no regular file" in caplog.text
    assert state(model, cache_dir) == "hit"


def test_weights_of_another_model_under_the_same_name_are_not_used(
    model: Path, tiny_model_path: Path, tmp_path: Path, cache_dir: Path
):
    other = write_gguf(tiny_model_path, tmp_path / "other.gguf", Kind.Q4_1)
    with other.open("r+b") as file:  # the same plan, other numbers
        file.seek(-8, os.SEEK_END)
        file.write(b"\x12\x34\x56\x78")
    state(model, cache_dir)
    (first,) = files(cache_dir)
    state(other, cache_dir)
    (second,) = set(files(cache_dir)) - {first}
    first.replace(second)

    assert state(other, cache_dir) == "miss"


def test_a_model_that_changes_while_it_is_packed_is_not_cached(
    model: Path, tiny_model_path: Path, tmp_path: Path, cache_dir: Path
):
    checkpoint = open_checkpoint(model)
    other = write_gguf(tiny_model_path, tmp_path / "other.gguf", Kind.Q4_1)
    kept = model.with_name("kept.gguf")
    os.link(model, kept)

    def replace(done: int, _total: int) -> None:
        if done and other.exists():
            other.replace(model)

    choice = choose_quantization("auto", checkpoint.tensors.values())
    loader = CpuWeightLoader(checkpoint, choice, WeightCache(cache_dir, GIB), 1, replace)
    loader.load(family_of(checkpoint.config).parameters(checkpoint.config))

    assert loader.cache_state == "miss"
    assert not files(cache_dir)
    assert state(kept, cache_dir) == "miss"


def test_where_files_are_never_ours_alone_nothing_is_written_at_each_start(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    fstat, owner_at = os.fstat, 4

    def of_another(descriptor: int) -> os.stat_result:  # as on file systems that map users
        facts = list(fstat(descriptor)[:10])
        facts[owner_at] = os.geteuid() + 1
        return os.stat_result(facts)

    monkeypatch.setattr(os, "fstat", of_another)

    assert not store(WeightCache(cache_dir, GIB), "a")

    assert "name another directory" in caplog.text
    assert not list(cache_dir.iterdir())


def test_pages_that_cannot_be_read_do_not_end_the_process(tmp_path: Path):
    file = tmp_path / "pages"
    file.write_bytes(bytes(1 << 20))
    with file.open("rb") as stream:
        pages = mmap.mmap(stream.fileno(), 1 << 20, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ)
    os.truncate(file, 0)  # to the reader, what a bad sector is

    with pytest.raises(weight_file.UselessFileError, match="cannot be read whole"):
        weight_file.populate(pages, lambda: None)


def test_all_that_takes_long_says_that_it_goes_on(
    model: Path, cache_dir: Path, monkeypatch: pytest.MonkeyPatch
):
    cache, seen = WeightCache(cache_dir, GIB), []
    monkeypatch.setattr(weight_file, "_WRITE_BYTES", 4096)
    monkeypatch.setattr(weight_file, "_POPULATE_BYTES", 4096)
    monkeypatch.setattr(content_hash, "_READ_BYTES", 4096)

    cache.key([model], b"layout", lambda: seen.append("key"))
    block = torch.zeros(3 * 4096, dtype=torch.uint8)
    cache.store(named("a"), b"header", block, lambda: seen.append("store"))
    cache.load(named("a"), lambda: seen.append("load"))

    assert seen.count("key") == -(-model.stat().st_size // 4096)
    assert seen.count("store") == 3
    assert seen.count("load") in (0, 4)  # 0: a system that cannot populate


def named(letter: str) -> str:
    """Return a key of one letter."""
    return letter * 40


def store(cache: WeightCache, letter: str, num_bytes: int = 10_000) -> bool:
    return cache.store(named(letter), b"header", torch.full((num_bytes,), 7, dtype=torch.uint8))


def test_the_least_recently_used_weights_make_room(cache_dir: Path):
    cache = WeightCache(cache_dir, max_bytes=3 * 16_000)
    for age, key in enumerate("abc"):
        assert store(cache, key)
        os.utime(cache_dir / f"{named(key)}.weights", (1000 + age, 1000 + age))
    assert cache.load(named("a")) is not None  # used now

    assert store(cache, "d")

    assert [path.stem[0] for path in files(cache_dir)] == ["a", "c", "d"]
    assert sum(path.stat().st_size for path in files(cache_dir)) <= 3 * 16_000


def test_engines_that_pack_the_same_weights_at_once_share_the_pages_of_one_file(cache_dir: Path):
    one, other, late = (WeightCache(cache_dir, GIB) for _ in range(3))
    for cache in (one, other, late):
        assert cache.load(named("a")) is None

    def finish_first() -> None:
        if not files(cache_dir):
            assert store(other, "a")

    block = torch.full((10_000,), 7, dtype=torch.uint8)
    assert one.store(named("a"), b"header", block, finish_first)
    (file,) = files(cache_dir)
    inode = file.stat().st_ino
    assert store(late, "a")

    assert file.stat().st_ino == inode
    assert list(cache_dir.iterdir()) == [file]


def test_what_another_engine_is_writing_counts(cache_dir: Path):
    cache = WeightCache(cache_dir, max_bytes=3 * 16_000)
    assert store(cache, "a")
    assert store(cache, "b")
    os.utime(cache_dir / f"{named('a')}.weights", (1000, 1000))
    (cache_dir / f".unfinished-{named('c')}-x").write_bytes(bytes(14_000))

    assert store(cache, "c")  # that one will be in this one's place
    assert [path.stem[0] for path in files(cache_dir)] == ["a", "b", "c"]
    assert store(cache, "d")

    assert [path.stem[0] for path in files(cache_dir)] == ["c", "d"]
    assert sum(path.stat().st_size for path in cache_dir.iterdir()) <= 3 * 16_000


def test_what_is_not_ours_stays_whatever_room_is_needed(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(content_hash, "_MAX_REMEMBERED", 0)
    cache_dir.mkdir(parents=True)
    for name in ("yolov3.weights", "mine.hash"):
        (cache_dir / name).write_bytes(bytes(20_000))
        os.utime(cache_dir / name, (1000, 1000))

    assert store(WeightCache(cache_dir, max_bytes=16_000), "a")

    assert len(list(cache_dir.iterdir())) == 3


def test_what_is_written_again_needs_no_room_beside_itself(cache_dir: Path):
    cache = WeightCache(cache_dir, max_bytes=2 * 16_000)
    assert store(cache, "a")
    assert store(cache, "b")
    (cache_dir / f"{named('b')}.weights").chmod(0o666)
    assert cache.load(named("b")) is None
    assert store(cache, "b")

    assert cache.load(named("b")) is not None
    assert [path.stem[0] for path in files(cache_dir)] == ["a", "b"]


def test_weights_larger_than_the_cache_are_not_kept(
    model: Path, cache_dir: Path, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.INFO)

    assert state(model, cache_dir, max_bytes=10_000) == "miss"
    assert not files(cache_dir)
    assert "the cache may hold 10000" in caplog.text


def test_mapped_weights_outlive_their_file(cache_dir: Path):
    cache = WeightCache(cache_dir, GIB)
    store(cache, "a", 3_000_000)
    found = cache.load(named("a"))
    assert isinstance(found, CachedBlock)

    files(cache_dir)[0].unlink()

    assert found.header == b"header"
    assert (found.block == 7).all()


def test_what_a_dead_process_left_is_removed(cache_dir: Path):
    cache = WeightCache(cache_dir, GIB)
    store(cache, "a")
    old, new = cache_dir / ".unfinished-old", cache_dir / ".unfinished-new"
    old.write_bytes(b"x")
    new.write_bytes(b"x")
    os.utime(old, (1000, 1000))

    store(cache, "b")

    assert not old.exists()
    assert new.exists()


def test_a_directory_that_cannot_be_made_is_a_warning(
    model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    (tmp_path / "file").write_bytes(b"")

    weights, loader = load(open_checkpoint(model), tmp_path / "file" / "weights")

    assert loader.cache_state == "miss"
    assert weights.num_bytes > 0
    assert "packed weights cannot be cached" in caplog.text


FULL_DISK = """
import resource, signal, sys
from pathlib import Path
import torch
from engine.kernels.cpu.weight_cache import WeightCache

resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
cache = WeightCache(Path(sys.argv[1]), 1 << 30)
assert not cache.store("a", b"header", torch.zeros(200_000, dtype=torch.uint8))
"""


def test_a_full_disk_is_a_warning_and_leaves_nothing_behind(cache_dir: Path):
    command = [sys.executable, "-c", FULL_DISK, str(cache_dir)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)

    assert "packed weights cannot be cached" in done.stderr
    assert list(cache_dir.iterdir()) == []


FULL_DISK_FOR_HASHES = """
import resource, signal, sys
from pathlib import Path
from engine.kernels.cpu import content_hash

content_hash._SETTLED_NS = -1
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
content_hash.ContentHashes(Path(sys.argv[1])).of(Path(sys.argv[2]), lambda: None)
"""


def test_a_hash_that_a_full_disk_cuts_off_leaves_nothing_behind(model: Path, cache_dir: Path):
    command = [sys.executable, "-c", FULL_DISK_FOR_HASHES, str(cache_dir), str(model)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)

    assert "is not remembered" in done.stderr
    assert list(cache_dir.iterdir()) == []


def test_engines_that_start_at_once_all_get_whole_weights(model: Path, cache_dir: Path):
    alone, _ = load(open_checkpoint(model), cache_dir.with_name("other"))
    found: list[Weights] = []

    def start() -> None:
        for _ in range(6):
            found.append(load(open_checkpoint(model), cache_dir)[0])
            for file in files(cache_dir)[:1]:
                file.unlink(missing_ok=True)

    threads = [threading.Thread(target=start) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(found) == 18
    for weights in found:
        assert_same(weights, alone)
    assert not list(cache_dir.glob(".unfinished-*"))


def test_the_memory_of_old_hashes_is_bounded(cache_dir: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(content_hash, "_MAX_REMEMBERED", 3)
    cache_dir.mkdir(parents=True)
    for age in range(5):
        file = cache_dir / f"{age:040}.hash"
        file.write_bytes(b"x" * 32)
        os.utime(file, (1000 + age, 1000 + age))

    ContentHashes(cache_dir).forget_old()

    assert sorted(int(path.stem) for path in cache_dir.iterdir()) == [2, 3, 4]
