"""Keeps packed weights on disk, so that the next start maps them: a bounded directory of files.

Engines share it, also while they write to it: a file appears whole, under a name that says what is
in it, and is never changed. Nothing that goes wrong here keeps an engine from starting.
"""

import hashlib
import logging
import os
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from torch import Tensor

from engine.kernels.cpu.content_hash import ContentHashes
from engine.kernels.cpu.own_files import ForeignFileError, check_own, open_own
from engine.kernels.cpu.weight_file import (
    AtWork,
    CachedBlock,
    UselessFileError,
    data_offset,
    read_block,
    write_block,
)

logger = logging.getLogger(__name__)

_SUFFIX = ".weights"
_UNFINISHED = ".unfinished-"
_UNFINISHED_S = 3600.0
"""A file that was not finished, and not written to for so long, is of a process that died."""
_KEY_CHARACTERS = 40
_OURS = "[0-9a-f]" * _KEY_CHARACTERS + _SUFFIX
"""A person may have named this directory: what else is in it is not ours to remove."""


def _nothing() -> None:
    """Stand in for `AtWork`."""


class WeightCache:
    """A directory of packed weights.

    Args:
        directory: Made when something is stored.
        max_bytes: Most that it may hold; the least recently used files go.
    """

    def __init__(self, directory: Path, max_bytes: int) -> None:
        self._directory = directory
        self._max_bytes = max_bytes
        self._hashes = ContentHashes(directory)
        self._missed: dict[str, int | None] = {}
        """For each name that `load` looked for, which file was there: of no use, if we store."""

    def key(self, files: Sequence[Path], layout: bytes, at_work: AtWork = _nothing) -> str:
        """Return the name of the weights that are made of files in one way.

        Args:
            files: Of the checkpoint. Their content counts; it is read only if a file is not known.
            layout: Says all that packing depends on besides.
            at_work: See `AtWork`.

        Raises:
            CheckpointError: a file cannot be read.
        """
        digest = hashlib.sha256(layout)
        for file in files:
            digest.update(self._hashes.of(file, at_work))
        return digest.hexdigest()[:_KEY_CHARACTERS]

    def load(self, key: str, at_work: AtWork = _nothing) -> CachedBlock | None:
        """Map the weights of this name; None: there are none, or they cannot be used."""
        path = self._path(key)
        self._missed[key] = _inode(path)
        try:
            with open_own(path) as file:
                found = read_block(file, at_work)
                # the time of last use; fails on a read-only file system, where nothing is removed
                with suppress(OSError):
                    os.utime(file.fileno())
        except FileNotFoundError:
            return None
        except (OSError, ForeignFileError, UselessFileError) as error:
            logger.warning("cached weights %s are not used: %s", path.name, error)
            return None
        return found

    def store(self, key: str, header: bytes, block: Tensor, at_work: AtWork = _nothing) -> bool:
        """Write weights; whether they can be loaded now. A failure is logged, nothing more.

        Those that another engine stored since `load` looked stay: then both have the same pages.
        """
        num_bytes = data_offset(len(header)) + block.nbytes
        if num_bytes > self._max_bytes:
            logger.info(
                "weights of %d bytes are not cached, the cache may hold %d",
                num_bytes,
                self._max_bytes,
            )
            return False
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not self._is_stored(key):
                self._make_room(num_bytes, self._path(key))
                self._write(key, header, block, at_work)
        except ForeignFileError as error:
            logger.warning(
                "packed weights cannot be cached in %s: of each file there %s (as on some network "
                "file systems); name another directory, or `off`",
                self._directory,
                error,
            )
            return False
        except OSError as error:
            logger.warning("packed weights cannot be cached in %s: %s", self._directory, error)
            return False
        return True

    def _path(self, key: str) -> Path:
        return self._directory / f"{key}{_SUFFIX}"

    def _is_stored(self, key: str) -> bool:
        """Return whether another engine stored these weights since `load` looked for them."""
        return _inode(self._path(key)) not in (None, self._missed.get(key))

    def _write(self, key: str, header: bytes, block: Tensor, at_work: AtWork) -> None:
        path = self._path(key)
        # made by mkstemp: readable by the owner alone
        descriptor, name = tempfile.mkstemp(prefix=_unfinished_of(path), dir=self._directory)
        try:
            with open(descriptor, "wb", buffering=0) as file:  # noqa: PTH123
                check_own(descriptor)  # else `load` would refuse it, at every start
                write_block(file, header, block, at_work)
            if self._is_stored(key):
                Path(name).unlink()
                return
            Path(name).replace(path)
            _sync_directory(self._directory)
        except BaseException:
            with suppress(OSError):
                Path(name).unlink()
            raise

    def _make_room(self, num_bytes: int, replaced: Path) -> None:
        """Remove the least recently used files until another fits, beside those being written."""
        found: list[tuple[float, int, Path]] = []
        free = self._max_bytes - num_bytes
        for path in self._directory.iterdir():
            with suppress(FileNotFoundError):  # another engine was faster
                facts = path.stat()
                if path.name.startswith(_UNFINISHED):
                    is_same = path.name.startswith(_unfinished_of(replaced))
                    if not self._remove_abandoned(path) and not is_same:
                        free -= facts.st_size
                elif path.match(_OURS) and path != replaced:
                    found.append((facts.st_mtime, facts.st_size, path))
        free -= sum(size for _, size, _ in found)
        for _, size, path in sorted(found):
            if free >= 0:
                break
            logger.info("cached weights %s make room for others", path.name)
            path.unlink(missing_ok=True)
            free += size
        self._hashes.forget_old()

    def _remove_abandoned(self, path: Path) -> bool:
        """Remove a file that a process left behind; returns False for one that is being written."""
        here = self._clock_s()
        if here - path.stat().st_mtime <= _UNFINISHED_S:
            return False
        path.unlink(missing_ok=True)
        return True

    def _clock_s(self) -> float:
        """Return the file system's time, which may be another than ours."""
        with tempfile.TemporaryFile(dir=self._directory) as file:
            return os.fstat(file.fileno()).st_mtime


def _inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except OSError:
        return None


def _unfinished_of(path: Path) -> str:
    """Return how the names of files begin that will replace this one."""
    return f"{_UNFINISHED}{path.stem}-"


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
