"""The pool of KV blocks: which are free. Who holds which is written in the requests."""

from collections.abc import Iterable


class BlockPool:
    """Equal blocks of the KV cache, given out and taken back by number.

    The block that was released last is used next: memory of the cache that no load has ever needed
    is never touched, so it never becomes resident.

    Args:
        num_blocks: Blocks `0 .. num_blocks - 1`.
        block_size: Tokens that one block holds.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        if num_blocks < 1 or block_size < 1:
            raise ValueError(f"no pool of {num_blocks} blocks of {block_size} tokens")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._free = list(reversed(range(num_blocks)))
        self._used: set[int] = set()

    @property
    def num_free(self) -> int:
        """Blocks that nobody holds."""
        return len(self._free)

    @property
    def num_used(self) -> int:
        """Blocks that some request holds."""
        return len(self._used)

    def blocks_for(self, num_tokens: int) -> int:
        """Return how many blocks `num_tokens` tokens need."""
        return -(-num_tokens // self.block_size)

    def allocate(self, count: int) -> list[int] | None:
        """Take `count` blocks, or nothing and return None when fewer are free."""
        if count > len(self._free):
            return None
        blocks = [self._free.pop() for _ in range(count)]
        self._used.update(blocks)
        return blocks

    def free(self, blocks: Iterable[int]) -> None:
        """Give blocks back.

        Raises:
            ValueError: a block is not in use: two requests would share it later.
        """
        for block in blocks:
            if block not in self._used:
                raise ValueError(f"block {block} is not in use")
            self._used.remove(block)
            self._free.append(block)
