"""Every family on the C++ kernels: near transformers, and its bits in a mix against alone."""

from pathlib import Path

import pytest
import torch

from engine.kernels.cpu.library import instruction_sets
from tests.engine.models.family_texts import in_a_mix, in_one_piece
from tests.engine.models.harness import CpuHarness
from tests.engine.models.tiny_families import TinyModel

FORMATS = {
    # quantization and dtype of the cache: how far logits may be off, relative to the largest
    ("none", "bfloat16"): 0.03,
    ("none", "int8"): 0.05,
    ("int8", "bfloat16"): 0.1,
    ("w4", "int8"): 0.6,
}


def load(tiny: TinyModel, folder: Path, **changes: object) -> CpuHarness:
    model = CpuHarness(folder, max_model_len=tiny.max_model_len, **changes)
    model.poison(slice(None))
    return model


@pytest.mark.parametrize(("quantization", "kv_cache_dtype"), FORMATS)
def test_logits_are_near_those_of_transformers_and_neither_company_nor_threads_change_a_bit(
    tiny, folder, expected, quantization, kv_cache_dtype
):
    model = load(
        tiny, folder, quantization=quantization, kv_cache_dtype=kv_cache_dtype, num_threads=2
    )

    alone, mixed = in_one_piece(model, tiny), in_a_mix(model, tiny)
    one_thread = load(
        tiny, folder, quantization=quantization, kv_cache_dtype=kv_cache_dtype, num_threads=1
    )

    for one, other in zip(alone, in_one_piece(one_thread, tiny), strict=True):
        assert torch.equal(other, one)
    bound = FORMATS[quantization, kv_cache_dtype]
    for one, other, wanted in zip(alone, mixed, expected, strict=True):
        assert torch.equal(other, one)
        off = ((one - wanted).square().mean().sqrt() / wanted.square().mean().sqrt()).item()
        assert off < bound


@pytest.mark.parametrize("path", instruction_sets())
def test_every_instruction_set_computes_the_same_model(tiny, folder, expected, path):
    model = load(tiny, folder, kernels=f"cpu:{path}", quantization="none", num_threads=1)

    for one, wanted in zip(in_one_piece(model, tiny), expected, strict=True):
        off = ((one - wanted).square().mean().sqrt() / wanted.square().mean().sqrt()).item()
        assert off < FORMATS["none", "bfloat16"]
