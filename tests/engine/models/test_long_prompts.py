"""Prompts of up to 1,500 tokens: both real models say what they say in transformers."""

from pathlib import Path

import pytest
import torch

from engine.checkpoint.checkpoint import open_checkpoint
from tests.engine.models.harness import ModelHarness, Text, assert_close
from tests.engine.models.real_models import assert_greedy, greedy, transformers_model

README = Path(__file__).parents[3] / "README.md"
LENGTHS = [*range(5, 1500, 79), 1500]


def prompts(path: Path, lengths: list[int]) -> list[list[int]]:
    """Cut prose into prompts, each from another place."""
    token_ids = open_checkpoint(path).tokenizer().encode(README.read_text() * 3).ids
    starts = [37 * at for at in range(len(lengths))]
    found = [
        token_ids[start : start + length] for start, length in zip(starts, lengths, strict=True)
    ]
    assert [len(prompt) for prompt in found] == lengths
    return found


def test_gemma3_beyond_its_window_gives_the_logits_of_transformers(gemma3_path: Path):
    (prompt,) = prompts(gemma3_path, [580])
    with torch.inference_mode():
        wanted = transformers_model(gemma3_path)(
            torch.tensor([prompt]), logits_to_keep=30, use_cache=False
        ).logits[0]
    model = ModelHarness(gemma3_path, cache_mib=128, max_model_len=640)
    text, found = Text(model, prompt), []

    for count in (301, 249, 1, 28, 1):
        found += model.step([text.take(count)], last=28)

    assert_close(torch.cat(found[-3:]), wanted)


@pytest.mark.prove
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", ["smollm2_path", "gemma3_path"])
def test_the_greedy_text_after_20_long_prompts_equals_that_of_transformers(
    request: pytest.FixtureRequest, name: str
):
    path: Path = request.getfixturevalue(name)
    texts = prompts(path, LENGTHS)
    assert len(texts) == 20
    oracle = transformers_model(path)

    outputs = greedy(path, texts, 24)

    assert_greedy(oracle, texts, outputs)
