"""What engines keep on disk of weights in the layout of the CPU kernels: seen from outside.

Files may go at any time: an engine that has mapped one keeps its pages, the next start packs anew.
"""

from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

_KEY = "[0-9a-f]" * 40
_WEIGHTS = f"{_KEY}.weights"
_HASHES = f"{_KEY}.hash"
_UNFINISHED = ".unfinished-*"
"""Of an engine that writes, or that died; the former packs for itself if its file goes."""


@dataclass(frozen=True, slots=True)
class PackedWeights:
    """One entry of the cache."""

    key: str
    num_bytes: int
    last_used: datetime


def entries(directory: Path) -> list[PackedWeights]:
    """Return what the cache holds, the last used first; none if there is no such directory."""
    found: list[PackedWeights] = []
    for path in directory.glob(_WEIGHTS):
        with suppress(FileNotFoundError):  # an engine made room
            facts = path.stat()
            used = datetime.fromtimestamp(facts.st_mtime, UTC)
            found.append(PackedWeights(path.stem, facts.st_size, used))
    return sorted(found, key=lambda entry: entry.last_used, reverse=True)


def clear(directory: Path) -> int:
    """Remove all entries, what is not finished, and the hashes of models; return their bytes.

    Raises:
        OSError: one cannot be removed.
    """
    freed_bytes = 0
    for pattern in (_WEIGHTS, _HASHES, _UNFINISHED):
        for path in directory.glob(pattern):
            with suppress(FileNotFoundError):  # an engine made room
                num_bytes = path.stat().st_size
                path.unlink()
                freed_bytes += num_bytes
    return freed_bytes
