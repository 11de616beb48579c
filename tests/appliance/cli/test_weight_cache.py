"""`models cache`: what engines keep of packed weights is listed, and goes when it is told to."""

import os
from pathlib import Path

import pytest
import torch

from engine.kernels.cpu.weight_cache import WeightCache
from tests.appliance.cli.conftest import Run

GIB = 1 << 30


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "weights"
    monkeypatch.setenv("QUARTERDECK_WEIGHT_CACHE", str(path))
    return path


AA, BB = "a" * 40, "b" * 40


def fill(directory: Path, *keys: str) -> WeightCache:
    cache = WeightCache(directory, GIB)
    for number, key in enumerate(keys):
        assert cache.store(key, b"header", torch.zeros(100, dtype=torch.uint8))
        os.utime(directory / f"{key}.weights", (1_700_000_000 + number,) * 2)
    return cache


def test_a_cache_that_is_not_there_yet_is_empty(run: Run, directory: Path):
    result = run("models", "cache")

    assert result.code == 0
    assert result.err == f"{directory}: 0 B of at most 17.2 GB\n"


def test_what_engines_stored_is_listed_the_last_used_first(run: Run, directory: Path):
    fill(directory, AA, BB)

    shown = run("models", "cache", "-o", "json").json

    assert [item["key"] for item in shown["items"]] == [BB, AA]
    assert shown["bytes"] == sum(path.stat().st_size for path in directory.iterdir())
    assert (shown["directory"], shown["limit_bytes"]) == (str(directory), 16 * GIB)
    lines = run("models", "cache").out.splitlines()
    assert [line.split()[0] for line in lines] == ["WEIGHTS", BB, AA]


def test_clearing_removes_what_engines_stored_and_nothing_else(run: Run, directory: Path):
    cache = fill(directory, AA)
    mapped = cache.load(AA)
    hashed = directory.parent / "model.gguf"
    hashed.write_bytes(b"weights")
    os.utime(hashed, (1_700_000_000,) * 2)
    cache.key([hashed], b"layout")
    (directory / "notes.weights").write_text("mine")
    (directory / ".unfinished-x").write_bytes(bytes(2000))

    result = run("models", "cache", "--clear")

    assert result.code == 0
    assert result.err.startswith("freed 6 kB\n")
    assert [path.name for path in directory.iterdir()] == ["notes.weights"]
    assert mapped is not None
    assert mapped.block.sum() == 0, "an engine that uses the weights keeps them"


def test_a_cache_that_is_off_is_said_to_be_off(run: Run, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("QUARTERDECK_WEIGHT_CACHE", "off")

    assert run("models", "cache", "--clear").err == "the weight cache is off\n"
    assert run("models", "cache", "-o", "json").json["directory"] is None
