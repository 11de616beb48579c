"""Sampling: order of the filters, statistics, determinism and independence of the batch."""

from collections import Counter

import msgspec
import pytest
import torch

from engine.core.batch import SampleRow
from engine.core.sampler import Sampler, uniform
from engine.wire.messages import SamplingParams

GREEDY = SamplingParams(max_tokens=1, temperature=0.0)
RANDOM = SamplingParams(max_tokens=1, temperature=1.0, seed=7)


def asked(sampling: SamplingParams, *, at: int = 0, name: str = "r", banned=()) -> SampleRow:
    return SampleRow(
        request_id=name,
        sampling=sampling,
        position=at,
        num_prompt_tokens=1,
        history=[1] * (1 + at),
        banned_token_ids=banned,
    )


def token_ids(logits: torch.Tensor, rows: list[SampleRow]) -> list[int | None]:
    return [sampled.token_id for sampled in Sampler().sample(logits, rows)]


def changed(sampling: SamplingParams, **fields: object) -> SamplingParams:
    return msgspec.structs.replace(sampling, **fields)


def draw(logits: list[float], sampling: SamplingParams, times: int = 2000) -> Counter[int]:
    """Sample one position of many requests that differ in their seed."""
    requests = [asked(changed(sampling, seed=seed), name=str(seed)) for seed in range(times)]
    return Counter(token_ids(torch.tensor([logits] * times), requests))


def rows(count: int, vocab: int = 5000, seed: int = 3) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, vocab, generator=generator) * 3


def test_greedy_takes_the_best_token_and_the_first_of_equals():
    logits = torch.tensor([[0.0, 5.0, 2.0], [4.0, 1.0, 4.0]])

    assert token_ids(logits, [asked(GREEDY, name="a"), asked(GREEDY, name="b")]) == [1, 0]


def test_a_temperature_near_zero_is_greedy():
    assert set(draw([0.0, 0.1, 0.0], changed(RANDOM, temperature=1e-6), 50)) == {1}


def test_frequencies_follow_the_softmax():
    counts = draw([0.0, 1.0, 2.0, -1.0], RANDOM, 8000)

    wanted = torch.tensor([0.0, 1.0, 2.0, -1.0]).softmax(0)
    for token_id in range(4):
        assert counts[token_id] / 8000 == pytest.approx(wanted[token_id].item(), abs=0.02)


def test_temperature_sharpens_and_flattens():
    flat = draw([0.0, 1.0], changed(RANDOM, temperature=2.0))
    sharp = draw([0.0, 1.0], changed(RANDOM, temperature=0.25))

    assert flat[1] / 2000 == pytest.approx(0.622, abs=0.04)
    assert sharp[1] / 2000 == pytest.approx(0.982, abs=0.02)


def test_top_k_keeps_the_k_best():
    assert set(draw([1.0, 1.1, 0.9, 1.05], changed(RANDOM, top_k=2))) == {1, 3}


def test_top_p_keeps_the_fewest_tokens_that_reach_the_mass():
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log().tolist()

    assert set(draw(logits, changed(RANDOM, top_p=0.7))) == {0, 1}
    assert set(draw(logits, changed(RANDOM, top_p=0.85))) == {0, 1, 2}
    assert set(draw(logits, changed(RANDOM, top_p=0.01))) == {0}


def test_top_p_counts_the_mass_that_top_k_left():
    logits = torch.tensor([0.4, 0.3, 0.2, 0.1]).log().tolist()

    assert set(draw(logits, changed(RANDOM, top_k=2, top_p=0.55))) == {0}
    assert set(draw(logits, changed(RANDOM, top_k=2, top_p=0.6))) == {0, 1}


def test_min_p_drops_what_is_unlikely_next_to_the_best():
    logits = torch.tensor([0.6, 0.3, 0.1]).log().tolist()

    assert set(draw(logits, changed(RANDOM, min_p=0.4))) == {0, 1}


def test_a_flat_distribution_over_a_large_vocabulary_is_cut_exactly():
    counts = draw([0.0] * 3000, changed(RANDOM, top_p=0.9), 300)

    assert 2500 < max(counts) < 2700
    assert max(draw([0.0] * 3000, changed(RANDOM, top_k=2000), 300)) < 2000


def test_of_equals_the_first_are_kept_whatever_is_greater():
    logits = [0.0] * 3000
    logits[2500] = 1.0

    assert set(draw(logits, changed(RANDOM, top_k=5), 300)) <= {0, 1, 2, 3, 2500}
    assert set(draw(logits, changed(RANDOM, top_p=0.002), 300)) <= {0, 1, 2, 3, 2500}


def test_banned_tokens_are_never_chosen():
    logits = torch.tensor([[0.0, 5.0, 2.0], [0.0, 5.0, 2.0]])

    rows = [asked(GREEDY, name="a", banned=[1]), asked(RANDOM, name="b", banned=[0, 1])]

    assert token_ids(logits, rows) == [2, 2]


def test_the_same_seed_and_position_give_the_same_token():
    first = [token_ids(rows(1), [asked(RANDOM, at=at)]) for at in range(20)]
    again = [token_ids(rows(1), [asked(RANDOM, at=at)]) for at in range(20)]

    assert first == again
    assert len({token_id for (token_id,) in first}) > 5


def test_requests_without_a_seed_differ_from_each_other_but_stay_with_theirs():
    unseeded = changed(RANDOM, seed=None)
    sampler = Sampler()

    def tokens(name: str) -> list[int]:
        steps = [sampler.sample(rows(1), [asked(unseeded, at=at, name=name)]) for at in range(10)]
        return [step[0].token_id for step in steps]

    assert tokens("a") == tokens("a")
    assert tokens("a") != tokens("b")


@pytest.mark.parametrize(
    "sampling",
    [
        GREEDY,
        RANDOM,
        changed(RANDOM, top_p=0.9),
        changed(RANDOM, top_k=40, top_p=0.95, temperature=0.7),
        changed(RANDOM, min_p=0.05, logprobs=5),
        changed(GREEDY, logprobs=20),
    ],
)
def test_company_in_the_batch_changes_neither_token_nor_logprobs(sampling):
    others = [
        asked(changed(RANDOM, seed=at, top_p=0.5 + at / 50, logprobs=at), name=str(at))
        for at in range(9)
    ]

    alone = Sampler().sample(rows(10)[:1].clone(), [asked(sampling, at=3)])
    together = Sampler().sample(rows(10), [asked(sampling, at=3), *others])

    assert together[0] == alone[0]


def test_logprobs_are_those_of_the_unfiltered_model_and_agree_with_the_list():
    logits = rows(1)
    wanted = logits.double().log_softmax(-1)[0]

    sampling = changed(RANDOM, temperature=0.3, top_k=3, logprobs=5)
    (sampled,) = Sampler().sample(logits.clone(), [asked(sampling)])

    found = sampled.logprobs
    assert found.token_id == sampled.token_id
    assert found.logprob == pytest.approx(wanted[found.token_id].item(), abs=1e-4)
    assert [entry.token_id for entry in found.top] == wanted.topk(5).indices.tolist()
    assert {entry.token_id: entry.logprob for entry in found.top}[found.token_id] == found.logprob


def test_equal_logprobs_are_listed_by_token_id():
    logits = torch.zeros(1, 1000)
    logits[0, 40:800] = 1.0

    (sampled,) = Sampler().sample(logits, [asked(changed(GREEDY, logprobs=4))])

    assert [entry.token_id for entry in sampled.logprobs.top] == [40, 41, 42, 43]


def test_zero_logprobs_give_the_chosen_token_alone():
    (sampled,) = Sampler().sample(rows(1), [asked(changed(GREEDY, logprobs=0))])

    assert sampled.logprobs.top == ()


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("sampling", [GREEDY, RANDOM, changed(RANDOM, top_p=0.5)])
def test_a_row_without_numbers_is_a_fault_of_its_request_alone(bad, sampling):
    logits = rows(2)
    logits[0, 17] = bad

    asks = [asked(sampling, name="bad"), asked(sampling, name="good")]
    bad_one, good_one = Sampler().sample(logits, asks)

    assert (bad_one.token_id, bad_one.fault) == (None, "the model gave no number")
    assert good_one.fault is None
    assert good_one.token_id is not None


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": float("nan")},
        {"temperature": -1.0},
        {"temperature": float("inf")},
        {"top_p": 0.0},
        {"top_p": float("nan")},
        {"min_p": 2.0},
        {"top_k": 0},
        {"logprobs": 1000},
        {"repetition_penalty": 0.0},
        {"repetition_penalty": float("inf")},
        {"frequency_penalty": float("nan")},
        {"frequency_penalty": float("inf")},
    ],
)
def test_parameters_out_of_range_are_a_fault_of_their_request_alone(fields):
    asks = [asked(changed(RANDOM, **fields), name="bad"), asked(RANDOM, name="good")]

    bad, good = Sampler().sample(rows(2), asks)

    assert bad.token_id is None
    assert next(iter(fields)).split("_")[0] in bad.fault
    assert good.fault is None


def test_uniform_numbers_are_spread_over_seeds_and_positions():
    by_position = [uniform(1, at) for at in range(4000)]
    by_seed = [uniform(seed, 0) for seed in range(-2000, 2000)]

    for numbers in (by_position, by_seed):
        assert all(0.0 <= number < 1.0 for number in numbers)
        deciles = Counter(int(number * 10) for number in numbers)
        assert all(300 < deciles[tenth] < 500 for tenth in range(10))
