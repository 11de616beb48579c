"""The default model in each format predicts a text nearly as float32 does: the promised bounds."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from torch import Tensor

from ops.bench.accuracy import (
    VARIANTS,
    Likeness,
    Predictor,
    accuracy_of,
    continuations_of,
    likeness_of,
    logprobs_of,
    prompts_of,
    text_tokens,
)

MOST = {
    "auto": (0.006, 0.95),
    "auto, int8 KV": (0.008, 0.945),
    "int8 g32": (0.006, 0.94),
    "int8 g64": (0.01, 0.92),
    "bf16": (0.002, 0.975),
    "bf16, int8 KV": (0.004, 0.96),
}
"""Largest mean KL, and least share of equal best tokens."""

Reference = tuple[list[int], Sequence[Tensor]]


def reference_of(path: Path, num_tokens: int) -> Reference:
    token_ids = text_tokens(path, num_tokens)
    assert len(token_ids) == num_tokens
    return token_ids, logprobs_of(Predictor(path, num_tokens), token_ids)


def check(path: Path, name: str, reference: Reference, slack: float) -> None:
    """`slack` is for the fewer tokens of a short text."""
    token_ids, logprobs = reference
    predictor = Predictor(path, len(token_ids), VARIANTS[name])

    found = accuracy_of(predictor, token_ids, logprobs)

    most_kl, least_top1 = MOST[name]
    assert found.mean_kl <= most_kl
    assert found.top1 >= least_top1 - slack
    assert found.max_kl <= 60 * most_kl


@pytest.fixture(scope="module")
def short(smollm2_path: Path) -> Reference:
    return reference_of(smollm2_path, 220)


@pytest.fixture(scope="module")
def long(smollm2_path: Path) -> Reference:
    return reference_of(smollm2_path, 2000)


@pytest.mark.parametrize("name", MOST)
def test_a_page_is_predicted_within_the_bounds(name: str, smollm2_path: Path, short: Reference):
    check(smollm2_path, name, short, slack=0.03)


@pytest.mark.prove
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", MOST)
def test_a_long_text_is_predicted_within_the_bounds(name: str, smollm2_path: Path, long: Reference):
    check(smollm2_path, name, long, slack=0.0)


@pytest.mark.prove
@pytest.mark.timeout(900)
def test_bf16_texts_are_float32s_as_often_as_those_of_torch(smollm2_path: Path):
    token_ids = text_tokens(smollm2_path, 2000)
    prompts = prompts_of(token_ids)
    assert len(prompts) > 40

    def texts_of(name: str | None) -> list[list[int]]:
        variant = VARIANTS[name] if name else None
        return continuations_of(Predictor(smollm2_path, len(token_ids), variant), prompts)

    texts = texts_of(None)
    ours, torchs = (likeness_of(texts_of(name), texts) for name in ("bf16", "torch bf16"))

    # most differences are near ties, so both counts vary by their square root
    assert ours.same >= torchs.same - torchs.same**0.5


def test_texts_are_compared_up_to_the_first_token_that_differs():
    assert likeness_of([[1, 2, 3, 4], [1, 9, 3, 4]], [[1, 2, 3, 4], [1, 2, 3, 4]]) == Likeness(
        same=1, of=2, share=0.625
    )


def test_a_text_is_cut_into_whole_prompts():
    assert [list(prompt) for prompt in prompts_of(range(100))] == [
        list(range(48)),
        list(range(48, 96)),
    ]
