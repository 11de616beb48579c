"""The bits of a request's logits depend on nothing but the request."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from engine.core.batch import ScheduledRequest
from tests.engine.models.harness import ModelHarness, share

PROMPT = [(11 * at * at + 5 * at + 2) % 300 for at in range(150)]
BLOCKS = list(range(20, 40))


@pytest.fixture(scope="module", params=["float32", "bfloat16", "float16"])
def model(request: pytest.FixtureRequest, tiny_model_path: Path) -> ModelHarness:
    return ModelHarness(tiny_model_path, request.param)


@pytest.fixture(scope="module")
def real_model(smollm2_path: Path) -> ModelHarness:
    return ModelHarness(smollm2_path, "bfloat16")


def others(count: int, length: int) -> list[ScheduledRequest]:
    return [
        share([(at + 3 * i) % 300 for i in range(length)], blocks=range(60 + 4 * at, 64 + 4 * at))
        for at in range(count)
    ]


def in_chunks(model: ModelHarness, ends: Sequence[int], company: int = 0) -> torch.Tensor:
    logits, start = [], 0
    for end in ends:
        batch = [share(PROMPT[start:end], start, blocks=BLOCKS), *others(company, 1 + end % 7)]
        logits.append(model.step(batch)[0])
        start = end
    return torch.cat(logits)


def test_company_in_the_batch_changes_no_bit(model):
    alone = in_chunks(model, [150])

    for company in (1, 2, 7, 20):
        assert torch.equal(in_chunks(model, [150], company), alone)


def test_the_place_in_the_batch_changes_no_bit(model):
    alone = in_chunks(model, [150])

    *_, last = model.step([*others(5, 9), share(PROMPT, blocks=BLOCKS)])

    assert torch.equal(last, alone)


@pytest.mark.parametrize(
    "ends", [[1, 150], [7, 64, 100, 150], [128, 129, 130, 150], [*range(100, 151)]]
)
def test_chunked_prefill_and_decode_change_no_bit(model, ends):
    assert torch.equal(in_chunks(model, ends), in_chunks(model, [150]))


def test_what_an_earlier_owner_left_in_the_blocks_changes_no_bit(model):
    alone = in_chunks(model, [150])
    for cache in model.caches:
        cache.keys[BLOCKS] = 1000.0
        cache.values[BLOCKS] = 1000.0

    assert torch.equal(in_chunks(model, [150]), alone)


def test_the_default_model_in_bfloat16_is_batch_invariant(real_model):
    alone = in_chunks(real_model, [150])

    assert torch.equal(in_chunks(real_model, [150], company=9), alone)
    assert torch.equal(in_chunks(real_model, [97, *range(140, 151)], company=3), alone)


@pytest.mark.parametrize("threads", [1, 3])
def test_bits_do_not_depend_on_company_with_other_thread_counts(tiny_model_path, threads):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        model = ModelHarness(tiny_model_path)
        assert torch.equal(in_chunks(model, [40, 150], company=20), in_chunks(model, [150]))
    finally:
        torch.set_num_threads(before)
