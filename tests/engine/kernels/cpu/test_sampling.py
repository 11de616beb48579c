"""Sampling in C++ against a full sort, torch and probabilities, on every instruction set here."""

import math
import operator
import random
from collections import Counter
from collections.abc import Iterator

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from engine.core.sampler import Sampler
from engine.kernels.cpu.library import Pool, instruction_sets
from engine.kernels.cpu.sampling import CpuSampling
from engine.kernels.sampling import Chosen, Draws, PenaltyFactors, Said
from engine.kernels.torch_sampling import TorchSampling
from tests.engine.core.sample_rows import choose, random_row

ORACLE = TorchSampling()
SIZES = (1, 2, 15, 16, 17, 63, 64, 65, 200, 1001, 1024, 1025, 5000)
short = settings(max_examples=20, deadline=None)
seeds = st.integers(0, 10**6)
sizes = st.sampled_from(SIZES)


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with Pool(2) as made:
        yield made


@pytest.fixture(scope="module", params=instruction_sets())
def kernels(pool: Pool, request: pytest.FixtureRequest) -> CpuSampling:
    return CpuSampling(pool, request.param)


def random_logits(seed: int, rows: int, size: int, scale: float = 3.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(rows, size, generator=generator) * scale
    some = torch.rand(rows, size, generator=generator)
    logits[some < 0.1] = -math.inf
    logits[(some > 0.1) & (some < 0.2)] = 1.0  # equals
    logits[:, seed % size] = 2.0  # there is always a number
    return logits


def draws(rows: int, seed: int = 0, **fields: float) -> Draws:
    generator = torch.Generator().manual_seed(seed)
    given = {"temperature": 1.0, "min_p": 0.0, "top_k": 0, "top_p": 1.0, **fields}
    return Draws(
        temperature=torch.full((rows,), given["temperature"], dtype=torch.float32),
        min_p=torch.full((rows,), given["min_p"], dtype=torch.float32),
        top_k=torch.full((rows,), int(given["top_k"])),
        top_p=torch.full((rows,), given["top_p"], dtype=torch.float64),
        uniform=torch.rand(rows, generator=generator, dtype=torch.float64),
    )


def sorted_draw(logits: Tensor, given: Draws, at: int) -> int:
    """The token of one row, by a sort of the vocabulary and sums in double precision."""
    weights = ((logits - logits.max()) / given.temperature[at]).exp().double().nan_to_num()
    weights[weights < given.min_p[at]] = 0.0
    top_k, top_p = int(given.top_k[at]), float(given.top_p[at])
    ids = torch.arange(len(weights))
    if top_k or top_p < 1.0:
        weights, ids = weights.sort(descending=True, stable=True)
        weights[top_k or len(weights) :] = 0.0
        weights[weights.cumsum(0) - weights >= top_p * weights.sum()] = 0.0
    sums = weights.cumsum(0)
    place = torch.searchsorted(sums, given.uniform[at] * sums[-1], right=True)
    return int(ids[place])


@given(seed=seeds, size=sizes, rows=st.integers(1, 5))
@short
def test_the_best_token_is_the_first_of_the_greatest(kernels, seed, size, rows):
    logits = random_logits(seed, rows, size).round()
    before = logits.clone()

    values, ids = kernels.greatest(logits)

    wanted = logits.max(dim=-1)
    assert values == wanted.values.tolist()
    assert ids == [row.tolist().index(row.max().item()) for row in logits]
    assert torch.equal(logits, before)


@pytest.mark.parametrize("size", SIZES)
def test_one_value_that_is_no_number_is_seen_wherever_it_is(kernels, size):
    for at in {0, size // 2, size - 1}:
        logits = random_logits(size, 3, size)
        logits[1, at] = math.nan

        values, ids = kernels.greatest(logits)
        drawn, drawn_ids = kernels.draw(logits.clone(), draws(3, top_p=0.5))

        for found, tokens in ((values, ids), (drawn, drawn_ids)):
            assert list(map(math.isfinite, found)) == [True, False, True]
            assert 0 <= tokens[1] < size


@pytest.mark.parametrize("value", [math.inf, -math.inf])
def test_rows_without_a_finite_best_are_left_to_the_caller(kernels, value):
    logits = torch.full((2, 100), -math.inf)
    logits[:, 7] = torch.tensor([value, 1.0])

    values, ids = kernels.draw(logits, draws(2))

    assert values == [value, 1.0]
    assert ids[1] == 7
    assert 0 <= ids[0] < 100


def test_chosen_rows_are_looked_at_alone(kernels):
    logits = random_logits(1, 6, 300)

    values, ids = kernels.greatest(logits, [4, 1])

    assert values == logits[[4, 1]].amax(dim=-1).tolist()
    assert ids == logits[[4, 1]].argmax(dim=-1).tolist()
    assert torch.equal(kernels.log_softmax(logits, [4, 1]), kernels.log_softmax(logits)[[4, 1]])


@given(seed=seeds, size=sizes, scale=st.sampled_from([0.1, 3.0, 30.0]))
@short
def test_log_probabilities_are_those_of_double_precision(kernels, seed, size, scale):
    logits = random_logits(seed, 3, size, scale)

    found = kernels.log_softmax(logits)

    wanted = logits.double().log_softmax(dim=-1)
    torch.testing.assert_close(found.double(), wanted, rtol=2e-6, atol=2e-5)


@given(seed=seeds, size=sizes, num=st.integers(1, 40))
@short
def test_candidates_are_the_largest_and_equal_ones_by_index(kernels, seed, size, num):
    values = random_logits(seed, 4, size, 2.0).round()
    values[0, : size // 2] = -0.0
    values[0, size // 2 :] = 0.0
    num = min(num, size)

    found, ids = kernels.best(values, num)

    wanted, order = values.sort(dim=-1, descending=True, stable=True)
    assert torch.equal(found, wanted[:, :num])
    assert torch.equal(ids, order[:, :num])


@given(
    seed=seeds,
    size=sizes,
    temperature=st.sampled_from([0.3, 1.0, 5.0, 1e30]),
    min_p=st.sampled_from([0.0, 0.0, 0.05, 1.0]),
    top_k=st.sampled_from([0, 0, 1, 2, 40, 3000]),
    top_p=st.sampled_from([1.0, 1.0, 0.95, 0.5, 1e-9]),
)
@short
def test_drawn_tokens_are_those_of_a_full_sort(
    kernels, seed, size, temperature, min_p, top_k, top_p
):
    logits = random_logits(seed, 8, size)
    given = draws(8, seed, temperature=temperature, min_p=min_p, top_k=top_k, top_p=top_p)

    values, ids = kernels.draw(logits.clone(), given)

    wanted = [sorted_draw(row, given, at) for at, row in enumerate(logits)]
    assert values == logits.amax(dim=-1).tolist()
    wrong = [at for at, token_id in enumerate(wanted) if ids[at] != token_id]
    assert len(wrong) <= (0 if top_k == 1 else 1)  # a borderline is rare
    assert logits.gather(1, torch.tensor(ids).unsqueeze(1)).isfinite().all()


@pytest.mark.parametrize(
    ("fields", "kept"),
    [
        ({}, {0: 0.4, 1: 0.3, 2: 0.2, 3: 0.1}),
        ({"temperature": 0.5}, {0: 0.16, 1: 0.09, 2: 0.04, 3: 0.01}),
        ({"top_k": 2}, {0: 0.4, 1: 0.3}),
        ({"top_p": 0.69}, {0: 0.4, 1: 0.3}),
        ({"top_p": 0.71}, {0: 0.4, 1: 0.3, 2: 0.2}),
        ({"top_k": 3, "top_p": 0.43}, {0: 0.4}),
        ({"min_p": 0.45}, {0: 0.4, 1: 0.3, 2: 0.2}),
        ({"min_p": 0.45, "top_p": 0.5}, {0: 0.4, 1: 0.3}),
    ],
)
def test_frequencies_are_the_probabilities_of_what_is_kept(kernels, fields, kept):
    logits = torch.full((20_000, 80), -math.inf)
    logits[:, 70:74] = torch.tensor([0.1, 0.2, 0.4, 0.3]).log()
    order = {0: 72, 1: 73, 2: 71, 3: 70}

    _, ids = kernels.draw(logits, draws(20_000, 5, **fields))

    counts, total = Counter(ids), sum(kept.values())
    assert set(counts) == {order[rank] for rank in kept}
    for rank, share in kept.items():
        assert counts[order[rank]] / 20_000 == pytest.approx(share / total, abs=0.015)


@pytest.mark.parametrize("fields", [{}, {"top_p": 0.8}, {"top_k": 900}, {"temperature": 100.0}])
def test_many_tokens_are_drawn_as_often_as_they_should(kernels, fields):
    logits = random_logits(3, 1, 1001, 0.5).expand(4000, -1).clone()
    given = draws(4000, 6, **fields)
    given.uniform[:] = (torch.arange(4000) + 0.5) / 4000  # no noise: shares to 1 / 4000

    _, ids = kernels.draw(logits.clone(), given)

    _, wanted = ORACLE.draw(logits, given)
    assert sum(map(operator.ne, ids, wanted)) <= 4


def test_a_flat_row_is_cut_exactly_and_by_index(kernels):
    logits = torch.zeros(300, 3000)

    _, by_mass = kernels.draw(logits.clone(), draws(300, top_p=0.9))
    _, by_rank = kernels.draw(logits.clone(), draws(300, top_k=2000))

    assert 2600 < max(by_mass) < 2700
    assert 1900 < max(by_rank) < 2000


@pytest.mark.parametrize("size", [8, 64, 2048])
@pytest.mark.parametrize("fields", [{}, {"top_k": 4096}, {"top_p": 0.9999999}, {"top_p": 0.5}])
def test_a_share_or_a_number_that_is_met_exactly_goes_no_further(kernels, size, fields):
    kept = size // 2 if fields.get("top_p") == 0.5 else size  # 1 each: all sums are exact
    given = draws(kept, **fields)
    given.uniform[:] = torch.arange(kept) / kept
    given.uniform[-1] = 1.0 - 2.0**-52  # the last that is kept

    _, ids = kernels.draw(torch.zeros(kept, size), given)

    assert ids == list(range(kept))


@pytest.mark.parametrize("uniform", [0.0, 0.5, 1.0 - 2.0**-52])
@pytest.mark.parametrize("fields", [{}, {"top_k": 5}, {"top_p": 0.99999}, {"min_p": 1e-6}])
def test_a_token_without_weight_is_never_drawn(kernels, uniform, fields):
    logits = torch.full((1, 4096), -math.inf)
    logits[0, [70, 700, 4000]] = torch.tensor([0.0, -80.0, 5.0])
    given = draws(1, **fields)
    given.uniform[:] = uniform

    _, ids = kernels.draw(logits, given)

    assert ids[0] in (70, 700, 4000)


@pytest.mark.parametrize("threads", [1, 2])
def test_bits_depend_neither_on_company_nor_on_threads(kernels, threads):
    logits = random_logits(9, 12, 5003)
    given = draws(12, 9, top_p=0.9)
    given.top_k[::3] = 50
    given.top_p[::4] = 1.0
    given.temperature[::5] = 0.0
    _, together = kernels.draw(logits.clone(), given)
    scores = kernels.log_softmax(logits)
    with Pool(threads) as other:
        alone = CpuSampling(other, kernels._path.decode())
        for at in range(12):
            own = Draws(*(getattr(given, name)[at : at + 1] for name in Draws.__slots__))
            _, ids = alone.draw(logits[at : at + 1].clone(), own)
            assert ids[0] == together[at]
            assert torch.equal(alone.log_softmax(logits[at : at + 1].clone())[0], scores[at])


@given(seed=seeds, size=sizes, num_words=st.integers(0, 40))
@short
def test_masks_forbid_what_they_do_not_name(kernels, seed, size, num_words):
    generator = torch.Generator().manual_seed(seed)
    logits = random_logits(seed, 3, size)
    words = torch.randint(-(2**31), 2**31, (2, num_words), generator=generator).to(torch.int32)
    words[:, ::3], words[:, 1::3] = 0, -1
    wanted = logits.clone()
    ORACLE.forbid(wanted, [2, 0], list(words))

    kernels.forbid(logits, [2, 0], list(words))

    assert torch.equal(logits, wanted)


@given(seed=seeds, size=st.integers(1, 90))
@short
def test_penalties_are_those_of_torch(kernels, seed, size):
    generator = torch.Generator().manual_seed(seed)
    row = torch.randn(size, generator=generator)
    ids = torch.randperm(100, generator=generator)[: size // 2 + 1]
    said = Said(ids, torch.randint(0, 4, ids.shape, generator=generator))
    factors = PenaltyFactors(repetition=1.3, frequency=0.7, presence=-0.4)
    wanted = row.clone()
    ORACLE.penalise(wanted, said, factors)

    kernels.penalise(row, said, factors)

    torch.testing.assert_close(row, wanted, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_a_whole_batch_of_everything_is_sampled_as_in_plain_python(kernels, seed):
    rng, vocab = random.Random(seed), (37, 64, 300)[seed]
    rows = [random_row(rng, vocab, f"r{at}") for at in range(40)]
    for at, row in enumerate(rows):
        row.sampling = msgspec.structs.replace(row.sampling, seed=at)
    logits = torch.randn(40, vocab, generator=torch.Generator().manual_seed(seed)) * 4
    wanted = [choose(row.tolist(), asked) for row, asked in zip(logits, rows, strict=True)]

    sampler = Sampler(b"a secret", kernels)
    sampled = sampler.sample(logits.clone(), rows)

    assert [one.token_id for one in sampled] == wanted
    alone = Sampler(b"a secret", kernels).sample(logits[7:8].clone(), rows[7:8])
    assert alone == sampled[7:8]
    again = sampler.sample(logits.flip(0).clone(), rows[::-1])
    assert again == sampled[::-1]


def test_results_are_float32_whatever_torch_makes_by_default(kernels):
    logits = random_logits(5, 3, 300)
    given = draws(3)

    def everything() -> tuple[list[Tensor], list[Chosen]]:
        tensors = [kernels.log_softmax(logits), kernels.best(logits, 7)[0]]
        return tensors, [kernels.greatest(logits), kernels.draw(logits.clone(), given)]

    wanted, chosen = everything()
    torch.set_default_dtype(torch.float64)  # a program's choice; a smaller one would be overrun
    try:
        results, chosen_again = everything()
    finally:
        torch.set_default_dtype(torch.float32)

    assert all(torch.equal(*pair) for pair in zip(results, wanted, strict=True))
    assert {result.dtype for result in results} == {torch.float32}
    assert chosen_again == chosen


def test_rows_may_lie_apart_in_memory(kernels):
    wide = random_logits(4, 6, 700)
    logits = wide[::2, :300]

    values, ids = kernels.greatest(logits)

    assert values == logits.amax(dim=-1).tolist()
    assert ids == logits.argmax(dim=-1).tolist()


@pytest.mark.parametrize(
    "logits",
    [
        torch.zeros(2, 8, dtype=torch.float64),
        torch.zeros(8),
        torch.zeros(8, 2).T,
        torch.zeros(1, 8).expand(3, 8),
        torch.zeros(2, 0),
    ],
)
def test_logits_that_the_kernels_cannot_read_are_refused(kernels, logits):
    with pytest.raises(ValueError, match="logits"):
        kernels.greatest(logits)


def test_parameters_and_rows_that_do_not_fit_are_refused(kernels):
    logits = torch.zeros(3, 8)

    with pytest.raises(ValueError, match="expected 3 of"):
        kernels.draw(logits, draws(2))
    with pytest.raises(ValueError, match="rows 0 to 3 of 3"):
        kernels.greatest(logits, [0, 3])
    with pytest.raises(ValueError, match="9 of 8 values"):
        kernels.best(logits, 9)
    with pytest.raises(ValueError, match="int32"):
        kernels.forbid(logits, [0], [torch.zeros(1, dtype=torch.long)])
    with pytest.raises(ValueError, match="1 rows, 2 masks"):
        kernels.forbid(logits, [0], [torch.zeros(1, dtype=torch.int32)] * 2)
    said = Said(torch.zeros(2, dtype=torch.long), torch.zeros(1, dtype=torch.long))
    with pytest.raises(ValueError, match="expected 2 of"):
        kernels.penalise(logits[0], said, PenaltyFactors(1.0, 0.0, 0.0))


def test_nothing_computes_once_the_threads_have_ended():
    with Pool(1) as pool:
        kernels = CpuSampling(pool, instruction_sets()[0])

    for compute in (
        kernels.greatest,
        kernels.log_softmax,
        lambda logits: kernels.draw(logits, draws(1)),
        lambda logits: kernels.best(logits, 2),
        lambda logits: kernels.forbid(logits, [0], [torch.zeros(1, dtype=torch.int32)]),
    ):
        with pytest.raises(ValueError, match="the threads have ended"):
            compute(torch.zeros(1, 4))


def test_no_rows_have_no_tokens(kernels):
    assert kernels.greatest(torch.zeros(0, 5)) == ([], [])
