"""Opens the two files of a PEFT directory, and only what really lies in it."""

import os
import stat
from pathlib import Path
from typing import BinaryIO

from engine.checkpoint.errors import CheckpointError
from engine.checkpoint.safetensors_index import index_stream
from engine.checkpoint.tensors import TensorEntry
from engine.core.adapter_config import AdapterError

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"
MAX_HEADER_BYTES = 8 << 20
"""Of the weights file: some 200 bytes for each tensor."""
_PICKLE_FILE = "adapter_model.bin"
_LENGTH_BYTES = 8


def adapter_directory(path: Path) -> Path:
    """Return the real path of a directory.

    Raises:
        AdapterError: it is none, or out of reach.
    """
    try:
        directory = path.resolve(strict=True)
        is_directory = directory.is_dir()
    except (OSError, RuntimeError, ValueError) as error:
        raise AdapterError(f"{path} cannot be opened: {_reason(error)}") from error
    if not is_directory:
        raise AdapterError(f"{path} is no directory")
    return directory


def open_file(directory: Path, name: str, max_bytes: int) -> BinaryIO:
    """Open a regular file of at most `max_bytes` that really lies in the directory.

    Raises:
        AdapterError: there is no such file.
    """
    try:
        place = (directory / name).resolve(strict=True)
        if place.parent != directory:
            raise AdapterError(f"{name} is a link out of its directory")
        # not blocking: a pipe in its place would wait for a writer for ever
        descriptor = os.open(place, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except (OSError, RuntimeError) as error:
        raise AdapterError(_missing(directory, name, error)) from error
    try:
        _check_file(os.fstat(descriptor), name, max_bytes)
    except AdapterError:
        os.close(descriptor)
        raise
    return os.fdopen(descriptor, "rb")


def file_version(file: BinaryIO) -> tuple[int, int]:
    """Return the size and the time of the last change of an open file."""
    facts = os.fstat(file.fileno())
    return facts.st_size, facts.st_mtime_ns


def header_size(file: BinaryIO) -> int:
    """Return the bytes that precede the tensors of a weights file; leaves it at its start.

    Raises:
        AdapterError: there are too many.
    """
    length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
    file.seek(0)
    if length > MAX_HEADER_BYTES:
        raise AdapterError(f"{WEIGHTS_FILE}: the header is too long")
    return _LENGTH_BYTES + length


def index_weights(file: BinaryIO, header_bytes: int, file_bytes: int) -> list[TensorEntry]:
    """Return the tensors of the weights file in the order of their bytes, which must fill it.

    Leaves the file at its start.

    Raises:
        AdapterError: the file is truncated or corrupt.
    """
    try:
        found = index_stream(file, Path(WEIGHTS_FILE))
    except CheckpointError as error:
        raise AdapterError(str(error)) from error
    file.seek(0)
    entries = sorted(found.values(), key=lambda entry: entry.offset)
    end = header_bytes
    for entry in entries:
        if entry.offset != end:
            raise AdapterError(f"{WEIGHTS_FILE} is corrupt: tensor {entry.name} is out of place")
        end += entry.num_bytes
    if end != file_bytes:
        raise AdapterError(f"{WEIGHTS_FILE} is corrupt: it goes on after its last tensor")
    return entries


def _check_file(facts: os.stat_result, name: str, max_bytes: int) -> None:
    if not stat.S_ISREG(facts.st_mode):
        raise AdapterError(f"{name} is no regular file")
    if facts.st_size > max_bytes:
        raise AdapterError(
            f"{name} has {facts.st_size} bytes; an adapter of this model has at most {max_bytes}"
        )


def _missing(directory: Path, name: str, error: Exception) -> str:
    if name == WEIGHTS_FILE and (directory / _PICKLE_FILE).exists():
        return f"{name} is missing; {_PICKLE_FILE} is never read: save it as safetensors"
    return f"{name} cannot be opened: {_reason(error)}"


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
