"""Every family against transformers in float32, and its bits in a mix against alone.

Blocks that a request may not see, because nothing was written there yet or because they are before
its window, hold no numbers: one of them in a sum, and the result is none either.
"""

from pathlib import Path

import torch

from tests.engine.models.family_texts import in_a_mix, in_one_piece
from tests.engine.models.harness import ModelHarness, assert_close
from tests.engine.models.tiny_families import TinyModel


def load(tiny: TinyModel, folder: Path, dtype: str) -> ModelHarness:
    model = ModelHarness(folder, dtype, cache_mib=4, max_model_len=tiny.max_model_len)
    model.poison(slice(None))
    return model


def test_whole_prompts_and_a_mix_of_chunks_and_decodes_give_the_logits_of_transformers(
    tiny, folder, expected
):
    model = load(tiny, folder, "float32")

    alone, mixed = in_one_piece(model, tiny), in_a_mix(model, tiny)

    for one, other, wanted in zip(alone, mixed, expected, strict=True):
        assert_close(one, wanted)
        assert torch.equal(other, one)


def test_in_bfloat16_logits_are_near_and_bits_the_same_alone_and_in_a_mix(tiny, folder, expected):
    model = load(tiny, folder, "bfloat16")

    alone, mixed = in_one_piece(model, tiny), in_a_mix(model, tiny)

    for one, other, wanted in zip(alone, mixed, expected, strict=True):
        assert (one - wanted).square().mean().sqrt() / wanted.square().mean().sqrt() < 0.05
        assert torch.equal(other, one)
