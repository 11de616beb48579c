"""The pool of KV blocks."""

import pytest

from engine.core.block_pool import BlockPool


def test_blocks_are_rounded_up():
    pool = BlockPool(num_blocks=4, block_size=16)

    assert [pool.blocks_for(tokens) for tokens in (0, 1, 16, 17)] == [0, 1, 1, 2]


def test_free_and_used_add_up_and_no_block_is_given_twice():
    pool = BlockPool(num_blocks=5, block_size=16)

    first, second = pool.allocate(2), pool.allocate(3)

    assert first is not None
    assert second is not None
    assert sorted(first + second) == [0, 1, 2, 3, 4]
    assert (pool.num_free, pool.num_used) == (0, 5)


def test_an_allocation_is_whole_or_nothing():
    pool = BlockPool(num_blocks=2, block_size=16)

    assert pool.allocate(3) is None
    assert pool.num_free == 2


def test_requests_one_after_the_other_touch_no_more_blocks_than_one_needs():
    pool = BlockPool(num_blocks=100, block_size=16)
    touched: set[int] = set()
    for length in (3, 1, 2, 3, 3):
        blocks = pool.allocate(length)
        assert blocks is not None
        touched.update(blocks)
        pool.free(blocks)

    assert len(touched) == 3


def test_a_block_cannot_be_freed_twice():
    pool = BlockPool(num_blocks=2, block_size=16)
    blocks = pool.allocate(1)
    assert blocks is not None
    pool.free(blocks)

    with pytest.raises(ValueError, match="block 0 is not in use"):
        pool.free(blocks)


def test_an_empty_pool_is_refused():
    with pytest.raises(ValueError, match="no pool of 0 blocks"):
        BlockPool(num_blocks=0, block_size=16)
