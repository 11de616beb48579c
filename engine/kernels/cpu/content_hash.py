"""The hash of a file's content, remembered as long as the file is the same: big files read slowly.

A file is the same while device, inode, size and both times are. The time of change (ctime)
is the system's alone, so content that was replaced is never taken for the old one.
"""

import hashlib
import logging
import os
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from engine.checkpoint.errors import CheckpointError
from engine.kernels.cpu.own_files import ForeignFileError, open_own

logger = logging.getLogger(__name__)

_SUFFIX = ".hash"
_DIGEST_BYTES = 32
_NAME_CHARACTERS = 40
_OURS = "[0-9a-f]" * _NAME_CHARACTERS + _SUFFIX
_MAX_REMEMBERED = 256
_READ_BYTES = 32 << 20
_SETTLED_NS = 2_000_000_000
"""A file that changed later than this before it was read might change again within the same tick
of the file system's clock, with the same times: its hash is not remembered."""


class ContentHashes:
    """Hashes of files, remembered in small files of a directory.

    Args:
        directory: Made when a hash is remembered.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def of(self, file: Path, at_work: Callable[[], None]) -> bytes:
        """Return the hash of a file's content, which is read only if it is not known.

        Args:
            file: Which one.
            at_work: Called after each piece that was read.

        Raises:
            CheckpointError: it cannot be read.
        """
        try:
            with file.open("rb") as stream:
                before = os.fstat(stream.fileno())
                memory = self._directory / f"{_identity(before)}{_SUFFIX}"
                known = _remembered(memory)
                if known is not None:
                    return known
                digest = _digest(stream, at_work)
                after = os.fstat(stream.fileno())
        except OSError as error:
            raise CheckpointError(f"{file.name} cannot be read: {error}") from error
        if _identity(after) == _identity(before) and _is_settled(after):
            self._remember(memory, digest)
        return digest

    def forget_old(self) -> None:
        """Remove what is remembered of many files, the oldest first."""
        found: list[tuple[float, Path]] = []
        for path in self._directory.glob(_OURS):
            with suppress(FileNotFoundError):  # another engine was faster
                found.append((path.stat().st_mtime, path))
        for _, path in sorted(found)[:-_MAX_REMEMBERED]:
            path.unlink(missing_ok=True)

    def _remember(self, memory: Path, digest: bytes) -> None:
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor, name = tempfile.mkstemp(prefix=".unfinished-", dir=self._directory)
            try:
                with os.fdopen(descriptor, "wb") as stream:
                    stream.write(digest)
                Path(name).replace(memory)
            except BaseException:
                with suppress(OSError):
                    Path(name).unlink()
                raise
        except OSError as error:
            logger.warning("the hash of a model is not remembered: %s", error)


def identity_of(file: Path) -> str | None:
    """Return what stays the same as long as a file's content does; None: there is no file."""
    try:
        return _identity(file.stat())
    except OSError:
        return None


def _digest(stream: BinaryIO, at_work: Callable[[], None]) -> bytes:
    digest = hashlib.sha256()
    while content := stream.read(_READ_BYTES):
        digest.update(content)
        at_work()
    return digest.digest()


def _identity(facts: os.stat_result) -> str:
    numbers = (
        facts.st_dev,
        facts.st_ino,
        facts.st_size,
        facts.st_mtime_ns,
        facts.st_ctime_ns,
    )
    return hashlib.sha256(repr(numbers).encode()).hexdigest()[:_NAME_CHARACTERS]


def _is_settled(facts: os.stat_result) -> bool:
    # not the time of modification, which a copy takes over: it may lie in the future
    return time.time_ns() - facts.st_ctime_ns > _SETTLED_NS


def _remembered(memory: Path) -> bytes | None:
    with suppress(OSError, ForeignFileError), open_own(memory) as file:
        digest = file.read(_DIGEST_BYTES + 1)
        if len(digest) == _DIGEST_BYTES:
            return digest
    return None
