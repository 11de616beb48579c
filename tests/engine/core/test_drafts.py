"""Drafts through the real model: whatever is guessed, the text is that of single steps."""

import random
from pathlib import Path

import pytest

from engine.core.batch import ScheduledRequest
from engine.core.runner import TorchRunner
from engine.wire.messages import SamplingParams
from tests.engine.models.harness import make_runner

PROMPT = [5, 9, 30, 41, 7, 5, 9, 30]
BLOCKS = tuple(range(8))


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def runner(request, tiny_model_path: Path) -> TorchRunner:
    return make_runner(tiny_model_path, dtype=request.param, max_loras=0)


def step(
    runner: TorchRunner,
    tokens: list[int],
    computed: int,
    sampling: SamplingParams,
    drafts: tuple[int, ...] = (),
) -> tuple[tuple[int, ...], tuple]:
    request = ScheduledRequest(
        request_id="r",
        token_ids=[*tokens[computed:], *drafts],
        start_position=computed,
        block_table=BLOCKS,
        samples=True,
        sampling=sampling,
        num_output_tokens=len(tokens) - len(PROMPT),
        num_drafts=len(drafts),
        history=tokens,
        num_prompt_tokens=len(PROMPT),
    )
    result = runner.execute([request])
    assert not result.faults
    return result.token_ids["r"], result.logprobs.get("r", ())


def one_by_one(runner: TorchRunner, sampling: SamplingParams, count: int) -> tuple[list[int], list]:
    tokens, computed, entries = list(PROMPT), 0, []
    while len(tokens) < len(PROMPT) + count:
        new, logprobs = step(runner, tokens, computed, sampling)
        computed = len(tokens)
        tokens.extend(new)
        entries.extend(logprobs)
    return tokens[len(PROMPT) :], entries


SAMPLINGS = [
    SamplingParams(max_tokens=64, temperature=0.0, logprobs=3),
    SamplingParams(max_tokens=64, temperature=1.0, seed=11, top_k=40, logprobs=3),
    SamplingParams(max_tokens=64, temperature=0.9, seed=5, repetition_penalty=1.3),
    SamplingParams(max_tokens=64, temperature=0.0, frequency_penalty=1.0, min_tokens=30),
]


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_right_and_wrong_guesses_give_the_text_of_single_steps(runner, sampling):
    wanted, wanted_logprobs = one_by_one(runner, sampling, 40)
    chance = random.Random(3)

    tokens, computed, entries, accepted = list(PROMPT), 0, [], 0
    while len(tokens) < len(PROMPT) + 40:
        done = len(tokens) - len(PROMPT)
        guesses = [
            token if chance.random() < 0.7 else (token + 1) % 500
            for token in wanted[done : done + chance.randint(0, 5)]
        ]
        new, logprobs = step(runner, tokens, computed, sampling, tuple(guesses))
        assert 1 <= len(new) <= len(guesses) + 1
        accepted += len(new) - 1
        computed = len(tokens) + len(new) - 1
        tokens.extend(new)
        entries.extend(logprobs)

    assert tokens[len(PROMPT) :][:40] == wanted
    assert entries[: len(wanted_logprobs)] == wanted_logprobs
    assert accepted > 10
