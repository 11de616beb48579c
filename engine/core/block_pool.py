"""The pool of KV blocks: who shares which, which are free, and which free ones are worth keeping.

A free block whose content is known by a hash stays in the cache of prefixes until it is needed for
something else. Free blocks wait in one queue: those that hold nothing of use at its front, cached
ones at its end, so that what was used last is evicted last.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain

from engine.core.ages import Ages


class BlockPool:
    """Equal blocks of the KV cache, given out and taken back by number.

    An uncached block that was released last is used next: memory that no load has ever needed is
    never touched, so it never becomes resident.

    Args:
        num_blocks: Blocks `0 .. num_blocks - 1`.
        block_size: Tokens that one block holds.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        if num_blocks < 1 or block_size < 1:
            raise ValueError(f"no pool of {num_blocks} blocks of {block_size} tokens")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.num_free = num_blocks
        """Blocks that nobody holds; cached ones too."""
        self.num_cached = 0
        """Free blocks whose content may still be reused."""
        self.evicted = 0
        """Cached blocks that were given to something else, cumulative."""
        self.now_ns = 0
        """Time of the step that is being planned; its owner sets it."""
        self.residence = Ages()
        """How long blocks were held when their last holder gave them back."""
        self.eviction_age = Ages()
        """How long evicted blocks had been free."""
        self._since_ns = [0] * num_blocks
        self._holders = [0] * num_blocks
        self._hashes: list[bytes | None] = [None] * num_blocks
        self._block_of: dict[bytes, int] = {}
        # The free queue: a ring of links, so that a block in the middle leaves at once. Number
        # `num_blocks` is no block but the place between its end and its front.
        self._next = [*range(1, num_blocks + 1), 0]
        self._previous = [num_blocks, *range(num_blocks)]

    @property
    def num_used(self) -> int:
        """Blocks that somebody holds."""
        return self.num_blocks - self.num_free

    def blocks_for(self, num_tokens: int) -> int:
        """Return how many blocks `num_tokens` tokens need."""
        return -(-num_tokens // self.block_size)

    def num_holders(self, block: int) -> int:
        """Return how many share a block; 0: it is free."""
        return self._holders[block]

    def num_freed_by(self, tables: Iterable[Sequence[int]]) -> int:
        """Return how many blocks would be free if the holders with these tables gave them back."""
        given = Counter(chain.from_iterable(tables))
        return sum(self._holders[block] == count for block, count in given.items())

    def free_queue(self) -> list[int]:
        """Return the free blocks in the order in which they will be used."""
        queue: list[int] = []
        block = self._next[self.num_blocks]
        while block != self.num_blocks:
            queue.append(block)
            block = self._next[block]
        return queue

    # ------------------------------------------------------------ taking and giving back

    def allocate(self, count: int) -> list[int] | None:
        """Take `count` blocks, or nothing and return None when fewer are free."""
        if count > self.num_free:
            return None
        return [self._take_next() for _ in range(count)]

    def _take_next(self) -> int:
        block = self._next[self.num_blocks]
        self._unlink(block)
        self._holders[block] = 1
        if self._hashes[block] is not None:
            self._forget(block)
            self.num_cached -= 1
            self.evicted += 1
            self.eviction_age.add(self.now_ns - self._since_ns[block])
        self._since_ns[block] = self.now_ns
        return block

    def share(self, blocks: Iterable[int]) -> None:
        """Become one more holder of each of these cached blocks, free or not."""
        for block in blocks:
            if self._holders[block] == 0:
                assert self._hashes[block] is not None, "only cached blocks can be shared"
                self._unlink(block)
                self.num_cached -= 1
                self._since_ns[block] = self.now_ns
            self._holders[block] += 1

    def free(self, blocks: Sequence[int]) -> None:
        """Give blocks back, the last one first: the end of a prefix is evicted before its start.

        Raises:
            ValueError: a block is not in use: two requests would share it later.
        """
        for block in reversed(blocks):
            if self._holders[block] == 0:
                raise ValueError(f"block {block} is not in use")
            self._holders[block] -= 1
            if self._holders[block] == 0:
                self.residence.add(self.now_ns - self._since_ns[block])
                self._since_ns[block] = self.now_ns
                self._enqueue(block)

    def _enqueue(self, block: int) -> None:
        end = self.num_blocks
        if self._hashes[block] is None:
            before, after = end, self._next[end]
        else:
            before, after = self._previous[end], end
            self.num_cached += 1
        self._next[before] = self._previous[after] = block
        self._previous[block], self._next[block] = before, after
        self.num_free += 1

    def _unlink(self, block: int) -> None:
        before, after = self._previous[block], self._next[block]
        self._next[before], self._previous[after] = after, before
        self.num_free -= 1

    # ------------------------------------------------------------ cached content

    def find(self, block_hash: bytes) -> int | None:
        """Return the block with this content, free or not."""
        return self._block_of.get(block_hash)

    def register(self, block: int, block_hash: bytes) -> None:
        """Make a held block's content known; what another block has already stays with that one."""
        assert self._holders[block] > 0, "only its holder knows what is in a block"
        assert self._hashes[block] is None, "what is in a block changed under its hash"
        if block_hash not in self._block_of:
            self._block_of[block_hash] = block
            self._hashes[block] = block_hash

    def _forget(self, block: int) -> None:
        block_hash = self._hashes[block]
        assert block_hash is not None, "the block is not cached"
        del self._block_of[block_hash]
        self._hashes[block] = None

    def forget_all(self) -> int:
        """Forget all cached content, of held blocks too; return how many blocks had some."""
        forgotten = list(self._block_of.values())
        for block in forgotten:
            self._forget(block)
        self.num_cached = 0
        return len(forgotten)
