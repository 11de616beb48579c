"""The llama model against transformers, in float32."""

from pathlib import Path

import pytest
import torch

from tests.engine.models.harness import ModelHarness, assert_close, share
from tests.engine.models.real_models import transformers_model

FIRST = [5, 9, 300, 41, 7, 250, 12, 77, 201, 6, 18, 19, 20, 290, 3, 111, 30]
SECOND = [8, 2, 17, 99, 140, 233]


@pytest.fixture(scope="module")
def model(tiny_model_path: Path) -> ModelHarness:
    return ModelHarness(tiny_model_path)


@pytest.fixture(scope="module")
def oracle(tiny_model_path: Path):
    return transformers_model(tiny_model_path)


def expected(oracle, token_ids: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        return oracle(torch.tensor([token_ids])).logits[0]


def test_a_whole_prompt_gives_the_logits_of_transformers(model, oracle):
    (logits,) = model.step([share(FIRST, blocks=[3, 1])])

    assert_close(logits, expected(oracle, FIRST))


def test_chunks_decode_and_another_prefill_in_one_batch_give_the_logits_of_transformers(
    model, oracle
):
    model.step([share(FIRST[:7], blocks=[5, 9]), share(SECOND[:5], blocks=[2])])

    chunk, decode, prefill = model.step(
        [
            share(FIRST[7:], 7, blocks=[5, 9]),
            share(SECOND[5:], 5, blocks=[2]),
            share(SECOND, blocks=[7]),
        ]
    )

    assert_close(chunk, expected(oracle, FIRST)[7:])
    assert_close(decode, expected(oracle, SECOND)[5:])
    assert_close(prefill, expected(oracle, SECOND))


def test_a_context_of_several_attention_chunks_gives_the_logits_of_transformers(model, oracle):
    prompt = [(7 * at * at + 3 * at) % 300 for at in range(300)]
    blocks = list(range(40, 59))

    model.step([share(prompt[:200], blocks=blocks)])
    (logits,) = model.step([share(prompt[200:], 200, blocks=blocks)])

    assert_close(logits, expected(oracle, prompt)[200:])


def test_the_blocks_of_a_context_may_lie_anywhere(model):
    prompt = [(5 * at + 1) % 300 for at in range(100)]

    (in_order,) = model.step([share(prompt, blocks=range(7))])
    (scattered,) = model.step([share(prompt, blocks=[60, 2, 33, 90, 11, 5, 81])])

    assert torch.equal(in_order, scattered)


def test_logits_are_capped(tiny_model_path, model):
    capped = ModelHarness(tiny_model_path, logits_softcap=0.5)

    (plain,) = model.step([share(FIRST, blocks=[3, 1])])
    (logits,) = capped.step([share(FIRST, blocks=[3, 1])])

    torch.testing.assert_close(logits, 0.5 * torch.tanh(plain / 0.5))
