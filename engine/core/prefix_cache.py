"""Finds computed prefixes again: chained hashes of full blocks of tokens.

The hash of a block covers everything that its keys and values depend on: all tokens up to its end,
the content of the adapter, and the salt of whoever wants to share with nobody else.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256

import msgspec

from engine.core.block_pool import BlockPool
from engine.core.request import EngineRequest

_UNSIGNED = "I"
"""Four bytes or more on every platform: no vocabulary is larger."""


@dataclass(slots=True, frozen=True)
class Prefix:
    """The longest cached beginning of a request, in blocks of both pools."""

    blocks: Sequence[int] = ()
    window_table: Sequence[int] = ()
    """As long as `blocks`, -1 before the window; empty without sliding-window layers."""

    @property
    def window_blocks(self) -> list[int]:
        """The blocks of `window_table`."""
        return [block for block in self.window_table if block >= 0]


def root_hash(adapter: str | None, salt: str | None) -> bytes:
    """Return the parent of a first block: requests that differ in it share nothing."""
    return sha256(msgspec.msgpack.encode((adapter, salt))).digest()


def block_hash(parent: bytes, token_ids: Sequence[int]) -> bytes:
    """Return the hash of a full block, given that of the one before it."""
    return sha256(parent + array(_UNSIGNED, token_ids).tobytes()).digest()


class PrefixCache:
    """Looks prefixes up and registers computed blocks, in both pools where there are two.

    Args:
        pool: Blocks of the full-attention layers.
        window_pool: Blocks of the sliding-window layers.
        window: Tokens that these see, their own included.
        enabled: False: nothing is found and nothing is registered.
    """

    def __init__(
        self, pool: BlockPool, window_pool: BlockPool | None, window: int, *, enabled: bool = True
    ) -> None:
        self.queried_tokens = 0
        self.cached_tokens = 0
        self._pool = pool
        self._window_pool = window_pool
        self._window = window
        self._enabled = enabled

    def hash_blocks(self, request: EngineRequest) -> None:
        """Extend the request's hashes to all blocks that its tokens fill."""
        if not self._enabled:
            return
        size, hashes, tokens = self._pool.block_size, request.block_hashes, request.token_ids
        if not hashes and len(tokens) >= size:
            root = root_hash(request.adapter_hash, request.cache_salt)
            hashes.append(block_hash(root, tokens[:size]))
        for start in range(len(hashes) * size, len(tokens) - size + 1, size):
            hashes.append(block_hash(hashes[-1], tokens[start : start + size]))

    def find(self, request: EngineRequest) -> Prefix:
        """Return the longest usable prefix: at least one token is left to compute.

        Nothing is found for a request whose prompt's logprobs are still to be told, because they
        are computed from the prompt's rows.
        """
        if not self._enabled or request.wants_prompt_logprobs:
            return Prefix()
        self.hash_blocks(request)
        limit = (len(request.token_ids) - 1) // self._pool.block_size
        blocks: list[int] = []
        for digest in request.block_hashes[:limit]:
            block = self._pool.find(digest)
            if block is None:
                break
            blocks.append(block)
        if self._window_pool is None:
            return Prefix(blocks)
        return self._with_window(self._window_pool, blocks, request.block_hashes)

    def _with_window(self, pool: BlockPool, blocks: list[int], hashes: Sequence[bytes]) -> Prefix:
        """Shorten a chain to where the window before its end is cached as well."""
        table = [pool.find(digest) for digest in hashes[: len(blocks)]]
        best = run = 0
        for count, found in enumerate(table, start=1):
            run = run + 1 if found is not None else 0
            if run >= count - self.first_visible(count * pool.block_size):
                best = count
        first = self.first_visible(best * pool.block_size)
        seen = [block for block in table[first:best] if block is not None]
        assert len(seen) == best - first, "the window before the end of a prefix has a hole"
        return Prefix(blocks[:best], [-1] * first + seen)

    def first_visible(self, position: int) -> int:
        """Return the index of the first block that a row at `position` or later can see."""
        return max(0, position - self._window + 1) // self._pool.block_size

    def count(self, queried_tokens: int, cached_tokens: int) -> None:
        """Count a look-up that led to an admission."""
        if self._enabled:
            self.queried_tokens += queried_tokens
            self.cached_tokens += cached_tokens

    def register(self, request: EngineRequest) -> None:
        """Make the blocks known that the request has computed to their end."""
        if not self._enabled:
            return
        full = request.num_computed_tokens // self._pool.block_size
        if full <= request.num_registered_blocks:
            return
        self.hash_blocks(request)
        for index in range(request.num_registered_blocks, full):
            digest = request.block_hashes[index]
            self._pool.register(request.block_table[index], digest)
            if self._window_pool is not None:
                self._window_pool.register(request.window_table[index], digest)
        request.num_registered_blocks = full

    def forget_all(self) -> int:
        """Forget everything; return how many blocks of the full-attention layers it was."""
        if self._window_pool is not None:
            self._window_pool.forget_all()
        return self._pool.forget_all()
