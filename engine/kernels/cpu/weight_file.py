"""The files of the weight cache: a prefix, a header, and from a page's start on the weights."""

import errno
import hashlib
import mmap
import os
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import BinaryIO

import torch
from torch import Tensor

_MAGIC = b"QDPACK01"
_PREFIX = struct.Struct("<8sIQ16s")
"""Magic, bytes of the header, bytes of the weights, checksum of the header."""
_CHECKSUM_BYTES = 16
_MAX_HEADER_BYTES = 64 << 20
_PAGE_BYTES = 4096
_WRITE_BYTES = 32 << 20
_MADV_POPULATE_READ = 22  # Linux 5.14; Python does not name it
_POPULATE_BYTES = 64 << 20
"""Python holds its lock while the system reads, which stops all threads: so much at a time."""
_UNREADABLE = (errno.EFAULT, errno.EIO, 133)  # 133: EHWPOISON, which Python does not name

AtWork = Callable[[], None]
"""Called after each piece of what takes long, so that an engine can say that it lives."""


@dataclass(frozen=True, slots=True)
class CachedBlock:
    """What a file holds."""

    header: bytes
    block: Tensor
    """uint8, a mapping that other engines share; ends with its last view."""


class UselessFileError(Exception):
    """A file of the cache cannot be used; says why."""


def read_block(file: BinaryIO, at_work: AtWork) -> CachedBlock:
    """Map the weights of a file.

    Raises:
        UselessFileError: it is none of ours, not whole, or cannot be read.
    """
    prefix = file.read(_PREFIX.size)
    if len(prefix) < _PREFIX.size:
        raise UselessFileError("it is truncated")
    magic, header_bytes, num_bytes, checksum = _PREFIX.unpack(prefix)
    if magic != _MAGIC:
        raise UselessFileError("it is of another version")
    if header_bytes > _MAX_HEADER_BYTES:
        raise UselessFileError("it is corrupt")
    header = file.read(header_bytes)
    if _checksum(header) != checksum:
        raise UselessFileError("it is corrupt")
    start = data_offset(header_bytes)
    if os.fstat(file.fileno()).st_size != start + num_bytes:
        raise UselessFileError("it is truncated")
    return CachedBlock(header, _mapped(file, start, num_bytes, at_work))


def _mapped(file: BinaryIO, start: int, num_bytes: int, at_work: AtWork) -> Tensor:
    # private and writable, because torch wants memory that it could write to; nobody does, so all
    # engines have the same pages
    pages = mmap.mmap(
        file.fileno(),
        start + num_bytes,
        flags=mmap.MAP_PRIVATE,
        prot=mmap.PROT_READ | mmap.PROT_WRITE,
    )
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # systems without them
            pages.madvise(mmap.MADV_HUGEPAGE)
    populate(pages, at_work)
    return torch.frombuffer(pages, dtype=torch.uint8, offset=start, count=num_bytes)


def populate(pages: mmap.mmap, at_work: AtWork) -> None:
    """Bring all pages in. A disk that cannot read one shows here, later it would end the process.

    Raises:
        UselessFileError: one cannot be read.
    """
    for first in range(0, len(pages), _POPULATE_BYTES):
        size = min(_POPULATE_BYTES, len(pages) - first)
        try:
            pages.madvise(_MADV_POPULATE_READ, first, size)
        except OSError as error:
            if error.errno in _UNREADABLE:
                raise UselessFileError("it cannot be read whole") from error
            return  # older systems: pages come when they are read
        at_work()


def write_block(file: BinaryIO, header: bytes, block: Tensor, at_work: AtWork) -> None:
    """Write a file, down to the disk.

    Raises:
        OSError: it cannot be written whole.
    """
    start = data_offset(len(header))
    prefix = _PREFIX.pack(_MAGIC, len(header), block.nbytes, _checksum(header)) + header
    # a full disk shows before anything is written
    os.posix_fallocate(file.fileno(), 0, start + block.nbytes)
    _write_fully(file, memoryview(prefix.ljust(start, b"\0")))
    content = block.numpy().data
    for first in range(0, len(content), _WRITE_BYTES):
        _write_fully(file, content[first : first + _WRITE_BYTES])
        os.fdatasync(file.fileno())  # now, for at the end it would take long at a stretch
        at_work()
    os.fsync(file.fileno())


def _write_fully(file: BinaryIO, content: memoryview) -> None:
    while len(content):
        content = content[file.write(content) :]


def data_offset(header_bytes: int) -> int:
    """Return where the weights begin behind a header of this size, in bytes."""
    return -(-(_PREFIX.size + header_bytes) // _PAGE_BYTES) * _PAGE_BYTES


def _checksum(header: bytes) -> bytes:
    return hashlib.blake2b(header, digest_size=_CHECKSUM_BYTES).digest()
