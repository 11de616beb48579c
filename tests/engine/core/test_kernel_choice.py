"""Which kernels are chosen, why, and what is refused."""

import pytest
import torch

from engine.core.batch import ConfigError
from engine.core.kernel_choice import choose_kernels
from engine.kernels.cpu import library
from tests.engine.models.harness import engine_config

CPU = torch.device("cpu")


def choose(saved: str | None = None, **changes: object):
    return choose_kernels(engine_config("model", **changes), CPU, saved)


def test_the_best_instruction_set_of_the_machine_computes_by_default():
    choice = choose()

    assert (choice.backend, choice.path) == ("cpu", library.instruction_sets()[0])
    assert choice.dtype.dtype == torch.bfloat16
    assert "best" in choice.reason


@pytest.mark.parametrize("path", library.instruction_sets())
def test_an_instruction_set_can_be_asked_for(path):
    choice = choose(kernels=f"cpu:{path}")

    assert (choice.path, choice.reason) == (path, "it was asked for")


def test_the_reference_can_be_asked_for():
    choice = choose(kernels="reference")

    assert (choice.backend, choice.path) == ("reference", "torch")
    assert "asked for" in choice.reason


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_another_dtype_is_the_references(dtype):
    choice = choose(dtype=dtype)

    assert (choice.backend, choice.dtype.name) == ("reference", dtype)
    assert dtype in choice.reason


def test_a_float32_checkpoint_stays_float32_until_something_faster_is_asked_for():
    assert choose(saved="float32").dtype.dtype == torch.float32
    assert "dtype bfloat16" in choose(saved="float32").reason
    for asked in ({"dtype": "bfloat16"}, {"quantization": "int8"}, {"kernels": "cpu"}):
        faster = choose(saved="float32", **asked)
        assert (faster.backend, faster.dtype.dtype) == ("cpu", torch.bfloat16)
        assert "float32" in faster.dtype.reason


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"kernels": "gpu"}, "known: auto, reference, cpu"),
        ({"kernels": "reference:avx2"}, "only cpu has instruction sets"),
        ({"kernels": "cpu:mmx"}, "this build has: "),
        ({"kernels": "cpu", "dtype": "float32"}, "do not compute in dtype float32"),
        ({"quantization": "w3"}, "known: auto, none, int8, w4"),
        ({"kv_cache_dtype": "int4"}, "known: auto, bfloat16, int8"),
        ({"kernels": "reference", "quantization": "int8"}, "needs the cpu kernels, but"),
        ({"dtype": "float32", "kv_cache_dtype": "bfloat16"}, "in what they compute in, float32"),
        ({"kernels": "reference", "kv_cache_dtype": "int8"}, "needs the cpu kernels, but"),
        ({"dtype": "float32", "quantization": "w4"}, "needs the cpu kernels, but"),
        ({"dtype": "float8"}, "float8"),
    ],
)
def test_what_cannot_be_done_is_refused_with_the_reason(changes, reason):
    with pytest.raises(ConfigError, match=reason):
        choose(**changes)


@pytest.fixture
def no_library(monkeypatch, tmp_path):
    monkeypatch.setenv(library.LIBRARY_VARIABLE, str(tmp_path / "none.so"))
    library.library.cache_clear()
    yield
    library.library.cache_clear()


def test_without_the_library_the_reference_computes_and_says_why(no_library):
    choice = choose()

    assert choice.backend == "reference"
    assert "cannot be loaded" in choice.reason
    with pytest.raises(ConfigError, match="cannot be loaded"):
        choose(kernels="cpu")
