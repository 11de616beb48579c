"""Random operations on a block pool and on a prefix cache, against simple models of them."""

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engine.core.block_pool import BlockPool
from engine.core.kv_blocks import KvBlocks
from engine.core.request import EngineRequest
from tests.engine.core.recount import check_pool
from tests.engine.core.scheduler_bench import a_request

SETTINGS = settings(
    max_examples=70,
    stateful_step_count=50,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


class BlockPoolMachine(RuleBasedStateMachine):
    """The model: the order of the free queue as a list, contents as a dictionary."""

    @initialize(num_blocks=st.integers(1, 12))
    def start(self, num_blocks):
        self.pool = BlockPool(num_blocks, 4)
        self.queue = list(range(num_blocks))
        self.content: dict[int, bytes] = {}
        self.tables: list[list[int]] = []
        self.evicted = 0

    @rule(count=st.integers(0, 5))
    def allocate(self, count):
        blocks = self.pool.allocate(count)
        if count > len(self.queue):
            assert blocks is None
            return
        expected, self.queue = self.queue[:count], self.queue[count:]
        assert blocks == expected, "least worth keeping first, then least recently used"
        self.evicted += sum(self.content.pop(block, None) is not None for block in expected)
        self.tables.append(blocks)

    @precondition(lambda self: self.tables)
    @rule(number=st.integers(0, 100))
    def free(self, number):
        table = self.tables.pop(number % len(self.tables))
        self.pool.free(table)
        for block in reversed(table):
            if not any(block in other for other in self.tables):
                self.queue.insert(len(self.queue) if block in self.content else 0, block)

    @precondition(lambda self: any(self.tables))
    @rule(number=st.integers(0, 100), key=st.integers(0, 9))
    def register(self, number, key):
        held = [block for table in self.tables for block in table if block not in self.content]
        if not held:
            return
        block, content = held[number % len(held)], bytes([key])
        self.pool.register(block, content)
        if content not in self.content.values():
            self.content[block] = content

    @rule(keys=st.lists(st.integers(0, 9), unique=True, max_size=4))
    def share(self, keys):
        found = [self.pool.find(bytes([key])) for key in keys]
        blocks = [block for block in found if block is not None]
        assert all(self.content[block] == bytes([keys[found.index(block)]]) for block in blocks)
        self.pool.share(blocks)
        self.queue = [block for block in self.queue if block not in blocks]
        self.tables.append(blocks)

    @rule()
    def forget_all(self):
        assert self.pool.forget_all() == len(self.content)
        self.content.clear()

    @invariant()
    def the_pool_is_as_the_model(self):
        if not hasattr(self, "pool"):
            return
        check_pool(self.pool, self.tables)
        assert self.pool.free_queue() == self.queue
        assert self.pool.evicted == self.evicted
        assert {self.pool.find(content): content for content in self.content.values()} == (
            self.content
        )

    def teardown(self):
        if hasattr(self, "pool"):
            for table in self.tables:
                self.pool.free(table)
            assert self.pool.num_used == 0


class PrefixCacheMachine(RuleBasedStateMachine):
    """The model: what each block holds, by full text. Requests come, are computed and go."""

    @initialize(
        num_blocks=st.integers(8, 16),
        window=st.sampled_from([None, 1, 2, 3, 6]),
        num_window_blocks=st.integers(6, 12),
    )
    def start(self, num_blocks, window, num_window_blocks):
        self.window = window
        window_pool = BlockPool(num_window_blocks, 2) if window else None
        self.kv = KvBlocks(BlockPool(num_blocks, 2), window_pool, window or 0)
        self.holders: list[EngineRequest] = []
        self.full: dict[int, object] = {}
        self.windowed: dict[int, object] = {}
        self.queried = self.cached = self.started = 0

    @rule(
        text=st.lists(st.integers(0, 1), min_size=1, max_size=12),
        salt=st.sampled_from([None, "salt"]),
        wants_prompt_logprobs=st.sampled_from([False, False, True]),
    )
    def start_a_request(self, text, salt, wants_prompt_logprobs):
        self.started += 1
        request = a_request(
            f"r{self.started}",
            text,
            cache_salt=salt,
            prompt_logprobs=0 if wants_prompt_logprobs else None,
        )
        if not self.kv.start(request, self.holders, chunk=4):
            assert request.block_table == request.window_table == []
            return
        request.running = True
        self.holders.append(request)
        cached = request.num_computed_tokens
        assert cached % 2 == 0
        assert cached < len(text)
        assert cached == 0 or not wants_prompt_logprobs
        self.queried, self.cached = self.queried + len(text), self.cached + cached
        for index in range(cached // 2):
            assert self.full[request.block_table[index]] == self.key(request, index)
        self.check_window(request)

    def key(self, request: EngineRequest, index: int) -> object:
        return tuple(request.token_ids[: 2 * index + 2]), request.cache_salt

    def check_window(self, request: EngineRequest) -> None:
        """All that the next row can see is in the window's blocks."""
        if self.window is None:
            return
        computed = request.num_computed_tokens
        for index in range(max(0, computed - self.window + 1) // 2, computed // 2):
            assert self.windowed[request.window_table[index]] == self.key(request, index)

    @precondition(lambda self: self.holders)
    @rule(number=st.integers(0, 100), count=st.integers(1, 4))
    def compute(self, number, count):
        request = self.holders[number % len(self.holders)]
        count = self.kv.fitting(request, min(count, request.num_uncomputed_tokens))
        if count < 1:
            return
        self.kv.grow(request, count)
        before, request.num_computed_tokens = (
            request.num_computed_tokens,
            (request.num_computed_tokens + count),
        )
        for index in range(before // 2, -(-request.num_computed_tokens // 2)):
            self.full[request.block_table[index]] = self.key(request, index)
            if self.window:
                self.windowed[request.window_table[index]] = self.key(request, index)
        self.kv.commit(request)
        self.check_window(request)

    @precondition(lambda self: self.holders)
    @rule(number=st.integers(0, 100), token=st.integers(0, 1))
    def append(self, number, token):
        request = self.holders[number % len(self.holders)]
        if request.num_uncomputed_tokens == 0:
            request.token_ids.append(token)

    @precondition(lambda self: self.holders)
    @rule(number=st.integers(0, 100))
    def release(self, number):
        self.kv.release(self.holders.pop(number % len(self.holders)))

    @rule()
    def forget_all(self):
        self.kv.cache.forget_all()

    @invariant()
    def counts_are_right(self):
        if not hasattr(self, "kv"):
            return
        check_pool(self.kv.pool, [request.block_table for request in self.holders])
        if self.kv.window_pool is not None:
            tables = [request.window_table[request.num_passed_blocks :] for request in self.holders]
            check_pool(self.kv.window_pool, tables)
        cache = self.kv.cache
        assert (cache.queried_tokens, cache.cached_tokens) == (self.queried, self.cached)

    def teardown(self):
        if hasattr(self, "kv"):
            for request in self.holders:
                self.kv.release(request)
            assert self.kv.pool.num_used == 0
            assert self.kv.window_pool is None or self.kv.window_pool.num_used == 0


TestBlockPool = BlockPoolMachine.TestCase
TestBlockPool.settings = SETTINGS
TestPrefixCache = PrefixCacheMachine.TestCase
TestPrefixCache.settings = SETTINGS
