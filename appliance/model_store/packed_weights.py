"""What engines keep on disk of weights in the layout of the CPU kernels: seen from outside.

Files may go at any time: an engine that has mapped one keeps its pages, the next start packs anew.
"""

from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

_WEIGHTS = "*.weights"
_HASHES = "*.hash"


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


def clear(directory: Path) -> None:
    """Remove all entries, and the hashes of models that are remembered beside them.

    Raises:
        OSError: one cannot be removed.
    """
    for pattern in (_WEIGHTS, _HASHES):
        for path in directory.glob(pattern):
            path.unlink(missing_ok=True)
