"""Every family against transformers in float32, and its bits in a mix against alone.

Blocks that a request may not see, because nothing was written there yet or because they are before
its window, hold no numbers: one of them in a sum, and the result is none either.
"""

from itertools import cycle, repeat
from pathlib import Path

import pytest
import torch

from tests.engine.models.harness import ModelHarness, Text, assert_close, run_texts
from tests.engine.models.tiny_families import MODELS, TinyModel

ODD_COUNTS = (1, 29, 5, 64, 1, 1, 101, 2, 17)


@pytest.fixture(scope="module", params=MODELS, ids=lambda tiny: tiny.name)
def tiny(request: pytest.FixtureRequest) -> TinyModel:
    return request.param


@pytest.fixture(scope="module")
def folder(tiny: TinyModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("families") / tiny.name


@pytest.fixture(scope="module")
def expected(tiny: TinyModel, folder: Path) -> list[torch.Tensor]:
    """Logits of transformers; padding on the right: no token looks that way."""
    oracle = tiny.save(folder)
    rows = [text + [0] * (tiny.max_model_len - len(text)) for text in token_ids(tiny)]
    with torch.inference_mode():
        logits = oracle(torch.tensor(rows)).logits
    return [row[: len(text)] for row, text in zip(logits, token_ids(tiny), strict=True)]


def load(tiny: TinyModel, folder: Path, dtype: str) -> ModelHarness:
    model = ModelHarness(folder, dtype, cache_mib=4, max_model_len=tiny.max_model_len)
    model.poison(slice(None))
    return model


def token_ids(tiny: TinyModel) -> list[list[int]]:
    lengths = (tiny.max_model_len - 3, tiny.max_model_len // 3, 19)
    return [[(7 * n + 11 * at * at + 5 * at) % 150 for at in range(n)] for n in lengths]


def in_one_piece(model: ModelHarness, tiny: TinyModel) -> list[torch.Tensor]:
    """Compute every text alone."""
    found: list[torch.Tensor] = []
    for tokens in token_ids(tiny):
        text = Text(model, tokens, first_block=100)
        run_texts(model, [text], repeat(len(tokens)))
        found += text.logits
    return found


def in_a_mix(model: ModelHarness, tiny: TinyModel) -> list[torch.Tensor]:
    """Compute chunks and single tokens of all texts in common steps."""
    texts: list[Text] = []
    for tokens in token_ids(tiny):
        texts.append(Text(model, tokens, texts[-1].end_block if texts else 1))
    run_texts(model, texts, cycle(ODD_COUNTS))
    return [torch.cat(text.logits) for text in texts]


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
