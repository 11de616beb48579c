"""Prefixes that are found again, and those that must not be."""

import pytest

from engine.core.block_pool import BlockPool
from engine.core.prefix_cache import block_hash, root_hash
from engine.core.request import StepTimes
from engine.wire.messages import FinishReason
from tests.engine.core.scheduler_bench import Bench, a_request
from tests.engine.core.seeing_runner import SeeingRunner
from tests.engine.core.test_scheduler_machine import FakeLease

CHAT = list(range(1, 21))
"""Five blocks of four."""


def cached_tokens(bench: Bench, name: str, prompt: list[int], **options: object) -> int:
    """Run a request alone to its end; return how much of its prompt was cached."""
    bench.add(a_request(name, prompt, **{"max_tokens": 1, **options}))
    bench.run()
    output = bench.endings[name].output
    assert output.cached_tokens == output.timeline.cached_tokens
    return output.cached_tokens


def a_lease(content_hash: str) -> FakeLease:
    return FakeLease(content_hash, is_ready=True)


def test_the_longest_chain_of_full_blocks_is_found_and_one_token_is_left_to_compute():
    bench = Bench(budget=64)

    assert cached_tokens(bench, "first", CHAT) == 0
    assert cached_tokens(bench, "same", CHAT) == 16, "all but the block of the last token"
    assert cached_tokens(bench, "longer", [*CHAT, 99]) == 20
    assert cached_tokens(bench, "other-end", [*CHAT[:9], 77, 78, 79, 80]) == 8
    assert cached_tokens(bench, "other-start", [0, *CHAT]) == 0
    counts = bench.scheduler.counts
    assert (counts.prefix_queried_tokens, counts.cached_tokens) == (95, 44)


def test_the_output_of_one_turn_is_found_in_the_next():
    bench = Bench(budget=64)
    bench.add(a_request("turn-1", CHAT, max_tokens=9))
    bench.run()

    turn_2 = [*CHAT, *bench.outputs["turn-1"], 50, 51]

    assert cached_tokens(bench, "turn-2", turn_2) == 28, "the last token was never computed"


def test_another_adapter_or_salt_shares_nothing_and_content_counts_rather_than_names():
    bench = Bench(budget=64)

    assert cached_tokens(bench, "base", CHAT) == 0
    assert cached_tokens(bench, "old-content", CHAT, adapter=a_lease("old")) == 0
    assert cached_tokens(bench, "new-content", CHAT, adapter=a_lease("new")) == 0
    assert cached_tokens(bench, "old-again", CHAT, adapter=a_lease("old")) == 16
    assert cached_tokens(bench, "salted", CHAT, cache_salt="mine") == 0
    assert cached_tokens(bench, "salted-again", CHAT, cache_salt="mine") == 16
    assert len({root_hash(None, None), root_hash("a", None), root_hash(None, "a")}) == 3


def test_a_hash_covers_all_tokens_before_it():
    first, second = block_hash(root_hash(None, None), [1, 2]), block_hash(b"", [1, 2])

    assert first != second
    assert block_hash(first, [3, 4]) != block_hash(second, [3, 4])
    assert block_hash(first, [3, 4]) != block_hash(first, [4, 3])


def test_prompt_logprobs_do_not_read_the_cache_but_fill_it():
    bench = Bench(budget=64)

    assert cached_tokens(bench, "first", CHAT, prompt_logprobs=0) == 0
    assert cached_tokens(bench, "second", CHAT, prompt_logprobs=0) == 0
    assert cached_tokens(bench, "third", CHAT) == 16


def test_switched_off_nothing_is_cached():
    bench = Bench(budget=64, prefix_caching=False)

    assert cached_tokens(bench, "first", CHAT) == cached_tokens(bench, "second", CHAT) == 0
    counts = bench.scheduler.counts
    assert counts.cached_blocks == counts.prefix_queried_tokens == 0


def test_a_reset_forgets_prefixes_and_takes_nothing_from_running_requests():
    bench = Bench(budget=64)
    bench.add(a_request("running", CHAT, max_tokens=6, ignore_eos=True))
    bench.step()
    held = bench.scheduler.counts.used_blocks

    assert bench.scheduler.reset_prefix_cache() == 5
    assert bench.scheduler.counts.used_blocks == held
    assert cached_tokens(bench, "next", CHAT) == 0


def test_what_a_faulty_step_wrote_is_never_found():
    runner = SeeingRunner()
    bench = Bench(budget=4, runner=runner, block_size=2)
    prompt = [1, 2, 3, 4, 5, 1, 2, 3, 4]
    bench.add(a_request("bad", prompt))
    bench.step()
    runner.faulty.add("bad")
    bench.step()

    assert bench.endings["bad"].output.finish_reason is FinishReason.ERROR
    assert cached_tokens(bench, "good", prompt) == 4, "the step before was sound"


def test_shared_blocks_are_stored_once_and_outlive_the_first_holder():
    bench = Bench(num_blocks=16, budget=64)
    bench.add(a_request("a", CHAT, max_tokens=3, ignore_eos=True))
    bench.step()
    bench.add(a_request("b", CHAT, max_tokens=8, ignore_eos=True))
    bench.step()
    a, b = bench.scheduler.requests.values()

    assert a.block_table[:4] == b.block_table[:4]
    assert bench.scheduler.counts.used_blocks == 7
    bench.run()
    assert bench.scheduler.counts.used_blocks == 0


def test_the_end_of_a_prefix_is_evicted_before_its_start():
    bench = Bench(num_blocks=8, budget=64)
    cached_tokens(bench, "old", CHAT)

    cached_tokens(bench, "other", [*range(100, 118)])

    assert bench.scheduler.counts.evicted_blocks == 2
    assert cached_tokens(bench, "again", CHAT) == 12


def test_a_preempted_request_finds_its_own_blocks_again_and_does_not_count_them():
    bench = Bench(num_blocks=6, budget=64)
    bench.add(
        a_request("old", [1] * 9, max_tokens=6, ignore_eos=True),
        a_request("young", [2] * 9, max_tokens=6, ignore_eos=True),
    )

    bench.run()

    young = bench.endings["young"].request
    assert young.preemptions >= 1
    assert sum(chunk.tokens for chunk in young.chunks) < 9 * (young.preemptions + 1)
    assert bench.scheduler.counts.cached_tokens == 0


# ------------------------------------------------------------ sliding windows


def windowed(window: int = 5, **options: object) -> Bench:
    fields = {"num_blocks": 64, "num_window_blocks": 16, "budget": 8}
    return Bench(window=window, block_size=2, runner=SeeingRunner(window), **{**fields, **options})


def test_a_request_holds_no_more_of_the_window_than_it_can_see():
    bench = windowed()
    bench.add(a_request("long", [1, 2, 3] * 12, max_tokens=40, ignore_eos=True))
    held = []
    while bench.scheduler.requests:
        bench.step()
        counts = bench.scheduler.counts
        held.append(counts.window_blocks - counts.free_window_blocks)

    assert max(held) <= -(-(5 + 8) // 2) + 1
    assert max(held[10:]) <= 4, "a decode sees five tokens"


def test_a_prefix_needs_the_window_before_its_end_as_well():
    bench = windowed(num_window_blocks=9)
    prompt = [1, 2, 3, 4, 5] * 4
    assert cached_tokens(bench, "first", prompt) == 0
    assert cached_tokens(bench, "second", prompt) == 18

    pool = bench.scheduler.window_pool
    blocks = pool.allocate(pool.num_free)  # whatever was cached there is gone
    pool.free(blocks)

    assert cached_tokens(bench, "third", prompt) == 0, "full blocks alone are no use"


def test_a_prompt_that_fits_into_no_window_pool_is_refused():
    bench = windowed(window=40, num_window_blocks=8)

    assert bench.scheduler.max_len == 16
    assert bench.scheduler.refusal(a_request("long", [1] * 16)) is not None
    assert bench.scheduler.refusal(a_request("fits", [1] * 15)) is None


def test_a_small_ring_is_enough_for_any_length():
    bench = windowed(num_window_blocks=3, budget=64)
    bench.add(a_request("long", [1, 2, 3] * 12, max_tokens=20, ignore_eos=True))

    bench.run()

    assert bench.scheduler.max_len > 56
    assert len(bench.outputs["long"]) == 20


def test_lent_blocks_come_back_uncached():
    bench = windowed()
    with bench.scheduler.borrow_blocks(7) as (table, window_table):
        assert len(table) == len(window_table) == 4
        assert bench.scheduler.counts.used_blocks == 4
    counts = bench.scheduler.counts
    assert (counts.used_blocks, counts.cached_blocks) == (0, 0)
    assert counts.free_window_blocks == counts.window_blocks


def test_blocks_are_not_lent_while_requests_are_live():
    bench = Bench()
    bench.add(a_request("r", [1]))

    with pytest.raises(AssertionError, match="nothing is live"):
        bench.scheduler.borrow_blocks(4)


def test_only_cached_blocks_can_be_shared_from_the_free_queue():
    pool = BlockPool(2, 4)

    with pytest.raises(AssertionError, match="only cached"):
        pool.share([0])


def test_blocks_of_a_request_that_ends_inside_a_step_are_free_after_it():
    bench = Bench(budget=64)
    bench.add(a_request("gone", CHAT), a_request("stays", [1, 2, 3]))
    plan = bench.scheduler.schedule(1)
    result = bench.execute(plan.batch)
    bench.abort(plan.requests[0])

    assert bench.scheduler.counts.used_blocks == 6, "the device may still write to them"
    produced = bench.scheduler.update(plan, result, StepTimes(1, 1, 2, 2))

    assert [item.output.request_id for item in produced] == ["stays"]
    assert bench.scheduler.counts.used_blocks == 1
