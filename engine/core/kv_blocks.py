"""The KV blocks of all requests: prefixes found again, room for the next tokens, blocks given back.

Models with sliding-window layers have a second pool. A request's `window_table` has the same index
as its `block_table`, but a block that lies wholly before the window goes back at once: a ring, of
which a request holds no more than its window and the chunk that is being computed.
"""

from collections.abc import Generator, Sequence
from contextlib import contextmanager

from engine.core.block_pool import BlockPool
from engine.core.prefix_cache import Prefix, PrefixCache
from engine.core.request import EngineRequest


class KvBlocks:
    """Gives blocks to requests and takes them back. Writes their tables; nobody else does.

    Args:
        pool: Blocks of the full-attention layers.
        window_pool: Blocks of the sliding-window layers; None: the model has none.
        window: Tokens that these see, their own included.
        prefix_caching: Whether computed prefixes are found again.
    """

    def __init__(
        self,
        pool: BlockPool,
        window_pool: BlockPool | None = None,
        window: int = 0,
        *,
        prefix_caching: bool = True,
    ) -> None:
        assert window_pool is None or window_pool.block_size == pool.block_size
        self.pool = pool
        self.window_pool = window_pool
        self.window = window
        self.cache = PrefixCache(pool, window_pool, window, enabled=prefix_caching)
        self._size = pool.block_size

    @property
    def max_tokens(self) -> int:
        """Most tokens that a request can have when it is alone."""
        capacity = self.pool.num_blocks * self._size
        if self.window_pool is None or self.window_pool.num_blocks >= self.blocks_for_window(1):
            return capacity
        return min(capacity, self.window_pool.num_blocks * self._size)

    def blocks_for_window(self, chunk: int) -> int:
        """Return the most blocks that `chunk` rows and the window before them touch."""
        return (self.window + chunk + self._size - 3) // self._size + 1

    def is_tight(self, count: int) -> bool:
        """Whether `count` requests may not all get one more block."""
        return self.pool.num_free < count or (
            self.window_pool is not None and self.window_pool.num_free < count
        )

    # ------------------------------------------------------------ starting

    def start(
        self,
        request: EngineRequest,
        running: Sequence[EngineRequest],
        chunk: int,
        spare_blocks: int = 0,
    ) -> bool:
        """Give a request its cached prefix and blocks for all tokens that are known, or nothing.

        For all that is known and not for one chunk: two half prompts that wait for each other's
        blocks would only preempt one another.

        Args:
            request: It holds no blocks.
            running: Those whose chunks will need more blocks of the window's pool.
            chunk: Most tokens of a request in one step.
            spare_blocks: Blocks that must stay free.
        """
        prefix = self.cache.find(request)
        missing = self.pool.blocks_for(len(request.token_ids)) - len(prefix.blocks)
        if missing + spare_blocks > self._free_beside(self.pool, prefix.blocks):
            return False
        if self.window_pool is not None:
            num_cached = len(prefix.blocks) * self._size
            wanted = self._window_wants(request, num_cached, running, chunk)
            held = len(prefix.window_blocks)
            if wanted - held > self._free_beside(self.window_pool, prefix.window_blocks):
                return False
        self._start_with(request, prefix, missing)
        return True

    def _free_beside(self, pool: BlockPool, shared: Sequence[int]) -> int:
        """Return how many blocks are free when `shared` ones are taken."""
        return pool.num_free - sum(pool.num_holders(block) == 0 for block in shared)

    def _window_wants(
        self,
        request: EngineRequest,
        num_cached: int,
        running: Sequence[EngineRequest],
        chunk: int,
    ) -> int:
        """Return how many window blocks a request and the running ones may take before decoding."""
        wanted = self._window_wants_of(request, num_cached, chunk)
        for other in running:
            wanted += self._window_wants_of(other, other.num_computed_tokens, chunk)
        return wanted

    def _window_wants_of(self, request: EngineRequest, num_computed: int, chunk: int) -> int:
        rows = min(chunk, len(request.token_ids) - num_computed)
        most = min(self.blocks_for_window(rows), self.pool.blocks_for(len(request.token_ids)))
        assert self.window_pool is not None
        held = len(request.window_table) - request.num_passed_blocks
        return max(0, min(most, self.window_pool.num_blocks) - held)

    def _start_with(self, request: EngineRequest, prefix: Prefix, missing: int) -> None:
        self.pool.share(prefix.blocks)
        fresh = self.pool.allocate(missing)
        assert fresh is not None, "the blocks were free a moment ago"
        request.block_table = [*prefix.blocks, *fresh]
        if self.window_pool is not None:
            self.window_pool.share(prefix.window_blocks)
            request.window_table = list(prefix.window_table)
            request.num_passed_blocks = len(prefix.blocks) - len(prefix.window_blocks)
        num_cached = len(prefix.blocks) * self._size
        request.num_registered_blocks = len(prefix.blocks)
        request.num_computed_tokens = num_cached
        if request.preemptions == 0:
            request.cached_tokens = num_cached
            self.cache.count(request.num_prompt_tokens, num_cached)

    def num_uncached_tokens(self, request: EngineRequest) -> int:
        """Return how many tokens of a waiting request no cached prefix has."""
        return len(request.token_ids) - len(self.cache.find(request).blocks) * self._size

    def fits_without(
        self,
        victims: Sequence[EngineRequest],
        request: EngineRequest,
        running: Sequence[EngineRequest],
        chunk: int,
    ) -> bool:
        """Whether a request fits beside `running`, cached or not, when the victims give way."""
        freed = self.pool.num_freed_by(victim.block_table for victim in victims)
        if self.pool.num_free + freed < self.pool.blocks_for(len(request.token_ids)):
            return False
        if self.window_pool is None:
            return True
        tables = (victim.window_table[victim.num_passed_blocks :] for victim in victims)
        freed = self.window_pool.num_freed_by(tables)
        wanted = self._window_wants(request, 0, running, chunk)
        return self.window_pool.num_free + freed >= wanted

    # ------------------------------------------------------------ running

    def has_slot(self, request: EngineRequest) -> bool:
        """Whether the next token needs no new block."""
        end = request.num_computed_tokens // self._size
        return end < len(request.block_table) and (
            self.window_pool is None or end < len(request.window_table)
        )

    def fitting(self, request: EngineRequest, count: int) -> int:
        """Return how many of the next `count` tokens there is room for, perhaps none."""
        start = request.num_computed_tokens
        room = (len(request.block_table) + self.pool.num_free) * self._size - start
        if self.window_pool is not None:
            blocks = len(request.window_table) + self.window_pool.num_free
            room = min(room, blocks * self._size - start)
        return min(count, room)

    def grow(self, request: EngineRequest, count: int) -> int:
        """Make room for the next `count` tokens, which `fitting` allowed; return the new blocks."""
        end = request.num_computed_tokens + count
        if self.window_pool is None and end <= len(request.block_table) * self._size:
            return 0
        num_blocks = -(-end // self._size)
        grown = _extend(request.block_table, self.pool, num_blocks)
        if self.window_pool is not None:
            _extend(request.window_table, self.window_pool, num_blocks)
        return grown

    def commit(self, request: EngineRequest) -> None:
        """Take note of what a step computed: cache full blocks, give passed ones back."""
        self.cache.register(request)
        if self.window_pool is None:
            return
        passed = self.cache.first_visible(request.num_computed_tokens)
        first = request.num_passed_blocks
        if passed > first:
            self.window_pool.free(request.window_table[first:passed])
            request.window_table[first:passed] = [-1] * (passed - first)
            request.num_passed_blocks = passed

    def release(self, request: EngineRequest) -> None:
        """Take all blocks of a request back."""
        self.pool.free(request.block_table)
        request.block_table = []
        if self.window_pool is not None:
            self.window_pool.free(request.window_table[request.num_passed_blocks :])
            request.window_table, request.num_passed_blocks = [], 0
        request.num_registered_blocks = 0

    # ------------------------------------------------------------ without a request

    @contextmanager
    def borrow(self, num_tokens: int) -> Generator[tuple[list[int], list[int]]]:
        """Lend blocks for `num_tokens` tokens; they come back uncached."""
        table, window_table = [], []
        _extend(table, self.pool, self.pool.blocks_for(num_tokens))
        if self.window_pool is not None:
            _extend(window_table, self.window_pool, self.pool.blocks_for(num_tokens))
        try:
            yield table, window_table
        finally:
            self.pool.free(table)
            if self.window_pool is not None:
                self.window_pool.free(window_table)


def _extend(table: list[int], pool: BlockPool, num_blocks: int) -> int:
    missing = num_blocks - len(table)
    if missing <= 0:
        return 0
    blocks = pool.allocate(missing)
    assert blocks is not None, "there was no room for the blocks"
    table.extend(blocks)
    return missing
