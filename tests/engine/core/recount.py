"""Counts a scheduler's blocks anew, from the requests, and compares."""

from collections import Counter
from collections.abc import Iterable

from engine.core.block_pool import BlockPool
from engine.core.request import EngineRequest
from engine.core.scheduler import Scheduler


def check_pool(pool: BlockPool, tables: Iterable[list[int]]) -> None:
    """Every block is where the tables and the free queue say, and nowhere else."""
    held: Counter[int] = Counter()
    for table in tables:
        assert len(table) == len(set(table)), "a block is twice in a table"
        held.update(table)
    free = pool.free_queue()
    assert len(free) == len(set(free)) == pool.num_free
    assert not set(free) & set(held)
    assert {*free, *held} == set(range(pool.num_blocks))
    assert pool.num_used == len(held)
    assert [pool.num_holders(block) for block in range(pool.num_blocks)] == [
        held[block] for block in range(pool.num_blocks)
    ]
    cached = {block: key for block, key in enumerate(pool._hashes) if key is not None}
    assert {block: key for key, block in pool._block_of.items()} == cached
    assert pool.num_cached == len(cached.keys() & set(free))


def check_scheduler(scheduler: Scheduler) -> None:
    """All invariants of pools, tables, lists and sums."""
    live = list(scheduler.requests.values())
    running = [request for request in live if request.running]
    waiting = [request for request in live if not request.running]
    assert (scheduler.num_running, scheduler.num_waiting) == (len(running), len(waiting))
    assert set(scheduler._admission.running) == {request.arrival for request in running}
    holders = [*running, *scheduler._held_by_step]
    check_pool(scheduler.pool, [request.block_table for request in holders])
    window_pool = scheduler.window_pool
    if window_pool is not None:
        tables = [request.window_table[request.num_passed_blocks :] for request in holders]
        check_pool(window_pool, tables)
    for request in waiting:
        assert not request.block_table
        assert not request.window_table
        assert request.num_computed_tokens == request.growth_blocks == 0
    for request in running:
        _check_running(scheduler, request)
    _check_sharing(holders, scheduler.pool.block_size)
    growth = sum(request.growth_blocks for request in running)
    assert scheduler._admission.growth_blocks == growth
    adapters = Counter(request.adapter_hash for request in running if request.adapter)
    assert scheduler._admission._adapters == adapters
    assert len(adapters) <= scheduler._limits.max_loras
    assert len(running) <= scheduler._limits.max_num_seqs


def _check_running(scheduler: Scheduler, request: EngineRequest) -> None:
    size = scheduler.pool.block_size
    assert 0 <= request.num_computed_tokens < len(request.token_ids)
    assert len(request.block_table) * size >= request.num_computed_tokens
    assert request.num_registered_blocks * size <= request.num_computed_tokens
    if scheduler.window_pool is None:
        return
    table, passed = request.window_table, request.num_passed_blocks
    assert all(block == -1 for block in table[:passed])
    assert all(block >= 0 for block in table[passed:])
    window, chunk = scheduler._kv.window, scheduler._limits.max_num_batched_tokens
    assert len(table) - passed <= -(-(window + chunk) // size) + 1
    visible = max(0, request.num_computed_tokens - window + 1)
    assert passed == visible // size or len(table) == 0


def _check_sharing(holders: list[EngineRequest], size: int) -> None:
    """Who shares a block has the same text up to its end, the same adapter and salt."""
    owners: dict[int, tuple[object, ...]] = {}
    for request in holders:
        for index, block in enumerate(request.block_table):
            text = tuple(request.token_ids[: (index + 1) * size])
            owner = (index, text, request.adapter_hash, request.cache_salt)
            assert owners.setdefault(block, owner) == owner, "strangers share a block"
