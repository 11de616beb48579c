"""All parameters together: against plain Python, alone against mixed, drafts against steps."""

import dataclasses
import random

import msgspec
import pytest
import torch

from engine.core.batch import SampleRow
from engine.core.sampler import Sampler, prompt_logprobs
from engine.kernels.torch_sampling import row_sums
from tests.engine.core.sample_rows import a_row, choose, random_row

SECRET = b"0123456789abcdef"


@pytest.fixture(params=[1, 2])
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def random_logits(rows: int, vocab: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, vocab, generator=generator) * 4


def grown(row: SampleRow, tokens: list[int]) -> SampleRow:
    """The row that follows when these tokens were sampled."""
    history = [*row.history, *tokens]
    return dataclasses.replace(row, history=history, position=row.position + len(tokens))


@pytest.mark.parametrize("seed", range(6))
def test_tokens_are_those_of_the_sampler_in_plain_python(seed):
    rng = random.Random(seed)
    vocab = rng.choice((37, 64, 300))
    rows = [random_row(rng, vocab, f"r{at}") for at in range(60)]
    for at, row in enumerate(rows):
        row.sampling = msgspec.structs.replace(row.sampling, seed=at)
    logits = random_logits(len(rows), vocab, seed)
    wanted = [choose(logits[at].tolist(), row) for at, row in enumerate(rows)]

    sampled = Sampler(SECRET).sample(logits, rows)

    assert [one.token_id for one in sampled] == wanted
    assert all((one.token_id is None) == (one.fault is not None) for one in sampled)


def test_two_hundred_rows_alone_and_mixed_give_the_same_bits(threads):
    rng = random.Random(threads)
    vocab = 1001  # rows begin at odd places in memory
    logits = random_logits(200, vocab, 5)
    rows = [random_row(rng, vocab, f"r{at}") for at in range(200)]
    alone = [
        Sampler(SECRET).sample(logits[at : at + 1].clone(), [rows[at]])[0] for at in range(200)
    ]

    sampler = Sampler(SECRET)
    for _ in range(5):
        order = rng.sample(range(200), rng.randint(1, 200))
        mixed = sampler.sample(logits[order], [rows[at] for at in order])
        assert mixed == [alone[at] for at in order]


def test_a_large_vocabulary_gives_the_same_bits_with_one_row_and_with_many(threads):
    rng = random.Random(11)
    vocab = 40_003  # one row alone is worth two threads
    logits = random_logits(24, vocab, 6)
    rows = [random_row(rng, 500, f"r{at}") for at in range(24)]
    for row in rows:
        row.grammar = None
        row.sampling = msgspec.structs.replace(row.sampling, allowed_token_ids=(), top_p=0.9)

    alone = [Sampler(SECRET).sample(logits[at : at + 1].clone(), [rows[at]])[0] for at in range(24)]

    assert Sampler(SECRET).sample(logits.clone(), rows) == alone


def test_the_mass_of_a_row_has_the_same_bits_alone_and_among_others(threads):
    values = random_logits(40, 49_153, 8).exp()

    together = row_sums(values)

    for at in range(40):
        assert torch.equal(row_sums(values[at : at + 1].clone()), together[at : at + 1])
    assert torch.allclose(together.squeeze(1), values.double().sum(-1), rtol=1e-6)


def test_rows_of_drafts_are_sampled_as_single_steps_are():
    rng = random.Random(2)
    row = a_row(
        temperature=0.9,
        seed=4,
        repetition_penalty=1.3,
        frequency_penalty=0.4,
        bad_words=((5, 6),),
        history=[3, 4, 5],
        num_prompt_tokens=2,
        position=1,
    )
    drafts = [rng.randrange(50) for _ in range(4)]
    rows = [grown(row, drafts[:at]) for at in range(5)]
    logits = random_logits(5, 50, 3)
    single = [Sampler(SECRET).sample(logits[at : at + 1].clone(), [rows[at]])[0] for at in range(5)]

    sampler = Sampler(SECRET)

    assert sampler.sample(logits.clone(), rows) == single
    wrong = grown(row, [drafts[0] + 1])  # what was kept of the drafts must not matter
    assert sampler.sample(logits[:1].clone(), [wrong]) == Sampler(SECRET).sample(
        logits[:1].clone(), [wrong]
    )


def test_the_chosen_tokens_logprob_is_its_entry_bit_for_bit():
    logits = random_logits(64, 500, 9)
    rows = [a_row(temperature=0.7, seed=at, logprobs=20, top_k=15) for at in range(64)]

    sampled = Sampler().sample(logits, rows)

    found = 0
    for one in sampled:
        listed = {entry.token_id: entry.logprob for entry in one.logprobs.top}
        assert list(listed.values()) == sorted(listed.values(), reverse=True)
        assert listed[one.token_id] == one.logprobs.logprob
        found += one.logprobs.token_id == one.token_id
    assert found == 64


def test_prompt_logprobs_are_those_of_single_rows_whatever_the_chunks():
    logits = random_logits(150, 700, 10)
    targets = [(at * 7) % 700 for at in range(150)]

    whole = prompt_logprobs(logits, targets, 5)

    chunks = [(0, 1), (1, 70), (70, 150)]
    parts = [prompt_logprobs(logits[a:b], targets[a:b], 5) for a, b in chunks]
    assert sum(parts, ()) == whole
    wanted = logits.double().log_softmax(-1)
    for at, entry in enumerate(whole):
        assert entry.token_id == targets[at]
        assert entry.logprob == pytest.approx(wanted[at, targets[at]].item(), abs=1e-4)
        assert [top.token_id for top in entry.top] == wanted[at].topk(5).indices.tolist()
        listed = {top.token_id: top.logprob for top in entry.top}
        assert listed.get(entry.token_id, entry.logprob) == entry.logprob


def test_prompt_logprobs_without_candidates_have_the_tokens_alone():
    (entry,) = prompt_logprobs(random_logits(1, 10, 1), [3], 0)

    assert (entry.token_id, entry.top) == (3, ())
