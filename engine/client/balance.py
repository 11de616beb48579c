"""Chooses an engine: the one that knows most of the prompt, unless it has more to do by a margin.

Pure: no clock, no sockets. An engine keeps the keys and values of prefixes it has computed, so a
prompt that continues one is cheaper where it was. What an engine really has is its own affair: this
is a guess from what was sent there, and a wrong one costs time, never correctness.
"""

from array import array
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Generic, TypeVar

BLOCK_TOKENS = 16
MAX_HASHED_BLOCKS = 128
"""A prompt's first 2048 tokens decide."""
MAX_PREFIXES = 65_536
"""About 20 MB."""
MAX_HOLDERS = 4
"""Engines remembered for one prefix."""
MARGIN = 4
"""Requests that an engine may have more than the least loaded one and still get a prompt that it
knows well."""
BLOCKS_PER_REQUEST = 8
"""Known blocks that outweigh one request more: the few words that begin every chat of a model do
not gather all chats on one engine."""

EngineT = TypeVar("EngineT")
"""What names an engine, its epoch included: a new process knows no prefixes."""


def prefix_hashes(
    prompt_token_ids: Sequence[int], *, adapter: str | None = None, cache_salt: str | None = None
) -> tuple[bytes, ...]:
    """Return a hash for each whole block of the prompt's beginning; each depends on all before.

    Prompts with different adapters or salts never share a hash, as in the engine's own cache.
    """
    num_blocks = min(len(prompt_token_ids) // BLOCK_TOKENS, MAX_HASHED_BLOCKS)
    tokens = array("q", prompt_token_ids[: num_blocks * BLOCK_TOKENS]).tobytes()
    width = BLOCK_TOKENS * array("q").itemsize
    above = repr((adapter, cache_salt)).encode()
    hashes: list[bytes] = []
    for index in range(num_blocks):
        block = tokens[index * width : (index + 1) * width]
        above = blake2b(above + block, digest_size=16).digest()
        hashes.append(above)
    return tuple(hashes)


class Balancer(Generic[EngineT]):
    """Chooses engines and remembers what they were given.

    Args:
        margin: See `MARGIN`.
        max_prefixes: Hashes that are remembered; the least recently used are forgotten.
    """

    def __init__(self, *, margin: int = MARGIN, max_prefixes: int = MAX_PREFIXES) -> None:
        self._margin = margin
        self._max_prefixes = max_prefixes
        self._holders: OrderedDict[bytes, tuple[EngineT, ...]] = OrderedDict()
        """Engines that were given a prefix, the last one first."""
        self._given: Counter[EngineT] = Counter()

    def choose(
        self,
        engines: Sequence[EngineT],
        load: Mapping[EngineT, int],
        prefix: Sequence[bytes] = (),
    ) -> EngineT:
        """Return the engine for a prompt.

        Args:
            engines: The candidates, at least one.
            load: Requests in flight; an engine that is not in it has none.
            prefix: The prompt's `prefix_hashes`.
        """
        known = self._known(engines, prefix)

        def cost(engine: EngineT) -> tuple[int, int, int]:
            depth = known.get(engine, 0)
            bonus = min(self._margin, depth // BLOCKS_PER_REQUEST)
            return load.get(engine, 0) - bonus, -depth, self._given[engine]

        return min(engines, key=cost)

    def note(self, engine: EngineT, prefix: Sequence[bytes] = ()) -> None:
        """Remember that a prompt was sent to an engine."""
        self._given[engine] += 1
        for key in prefix:
            others = [each for each in self._holders.get(key, ()) if each != engine]
            self._holders[key] = (engine, *others[: MAX_HOLDERS - 1])
            self._holders.move_to_end(key)
        while len(self._holders) > self._max_prefixes:
            self._holders.popitem(last=False)

    def _known(self, engines: Sequence[EngineT], prefix: Sequence[bytes]) -> dict[EngineT, int]:
        """Return how many blocks of the prefix each candidate was given."""
        known: dict[EngineT, int] = {}
        for depth in range(len(prefix), 0, -1):
            for engine in self._holders.get(prefix[depth - 1], ()):
                if engine in engines:
                    known.setdefault(engine, depth)
            if len(known) == len(engines):
                break
        return known
