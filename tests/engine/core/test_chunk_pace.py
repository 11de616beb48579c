"""The pace of long prompts beside decodes, on a machine whose costs are known."""

import pytest

from engine.core.chunk_pace import ALL_STRETCH, STRETCH, ChunkPace

DECODE_NS = 40_000_000
TOKEN_NS = 1_000_000
MS = 1_000_000


def step_ns(prompt_tokens: int, decode_tokens: int) -> int:
    return (DECODE_NS if decode_tokens else 0) + prompt_tokens * TOKEN_NS


def test_a_long_prompt_beside_decodes_stretches_a_step_to_the_wanted_multiple():
    pace = ChunkPace(0, budget=512, smallest=16)
    for _ in range(20):
        pace.observe(0, 8, step_ns(0, 8))
    longest = 0
    for _ in range(60):
        chunk = pace.limit()
        longest = step_ns(chunk, 8)
        pace.observe(chunk, 8, longest)

    assert longest == pytest.approx(STRETCH * DECODE_NS, rel=0.05)


def test_decodes_that_become_slower_are_measured_again_beside_a_long_prompt():
    pace = ChunkPace(0, budget=512, smallest=16)
    for _ in range(20):
        pace.observe(0, 8, DECODE_NS)
    taken: list[int] = []
    for _ in range(400):  # each decode takes four times as long from now on
        chunk = pace.limit()
        pace.observe(chunk, 32, 4 * DECODE_NS + chunk * TOKEN_NS)
        taken.append(chunk)

    assert taken.count(0) == pytest.approx(400 / 33, abs=2), "steps of decodes alone"
    assert taken[-1] > 80, "and the chunks have grown"


def test_without_measurements_it_takes_a_quarter_of_the_budget():
    assert ChunkPace(0, budget=512, smallest=16).limit() == 128


def test_a_fixed_threshold_is_kept_whatever_steps_last():
    pace = ChunkPace(64, budget=512, smallest=16)
    pace.observe(0, 8, step_ns(0, 8))
    pace.observe(64, 8, 10**12)

    assert (pace.limit(), pace.long_above) == (64, 64)


def test_a_prompt_always_gets_on_and_never_beyond_the_budget():
    slow, fast = ChunkPace(0, budget=512, smallest=16), ChunkPace(0, budget=512, smallest=16)
    for pace, token_ns in ((slow, 10**12), (fast, 1)):
        pace.observe(0, 8, DECODE_NS)
        pace.observe(128, 8, DECODE_NS + 128 * token_ns)

    assert slow.limit() == 16
    assert fast.limit() == 512


def test_a_prompt_alone_teaches_what_its_tokens_cost():
    pace = ChunkPace(0, budget=512, smallest=16)
    pace.observe(512, 0, step_ns(512, 0))
    pace.observe(0, 1, DECODE_NS)

    assert pace.limit() == pytest.approx((STRETCH - 1) * DECODE_NS / TOKEN_NS, abs=1)


def test_prompts_that_come_together_stretch_a_step_no_further_than_its_limit():
    pace = ChunkPace(threshold=0, budget=512, smallest=16)
    assert pace.limit_of_all() == 512
    for _ in range(40):
        pace.observe(0, 32, 30 * MS)
        pace.observe(128, 32, 30 * MS + 128 * MS // 2)

    assert pace.limit_of_all() == pytest.approx((ALL_STRETCH - 1) * 30 * 2, abs=1)


def test_prompts_get_on_even_where_decodes_are_fast():
    pace = ChunkPace(threshold=0, budget=512, smallest=16)
    for _ in range(40):
        pace.observe(0, 1, 4 * MS)
        pace.observe(128, 1, 4 * MS + 128 * MS // 2)

    assert pace.limit_of_all() == 64
