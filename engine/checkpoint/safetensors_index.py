"""Reads the tensor directory of safetensors files, sharded or not.

Source:
    https://huggingface.co/docs/safetensors/index#format
"""

import os
import struct
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from engine.checkpoint.errors import CheckpointError
from engine.checkpoint.files import read_small, regular_file
from engine.checkpoint.tensors import TensorEntry, plain_bytes

_LENGTH = struct.Struct("<Q")
_MAX_HEADER_BYTES = 100 << 20


def index_directory(directory: Path) -> dict[str, TensorEntry]:
    """Index every tensor of the model in `directory`.

    Raises:
        CheckpointError: no weights there, or a file is missing, truncated or corrupt.
        UnsupportedModelError: a tensor has a dtype that cannot be read.
    """
    tensors: dict[str, TensorEntry] = {}
    for file in _files(directory):
        tensors |= index_file(file)
    return tensors


def _files(directory: Path) -> list[Path]:
    index = directory / "model.safetensors.index.json"
    if index.exists():
        try:
            names = set(msgspec.json.decode(read_small(index))["weight_map"].values())
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise CheckpointError(f"{index.name} is corrupt: {error}") from error
        return [directory / Path(str(name)).name for name in sorted(names)]
    files = sorted(directory.glob("*.safetensors"))
    if not files:
        raise CheckpointError(f"{directory} has no *.safetensors file")
    return files


def index_file(file: Path) -> dict[str, TensorEntry]:
    """Index every tensor of one safetensors file; raises as `index_directory`."""
    try:
        stream = regular_file(file).open("rb")
    except OSError as error:
        raise CheckpointError(f"{file.name} is missing: {error}") from error
    with stream:
        return index_stream(stream, file)


def index_stream(stream: BinaryIO, file: Path) -> dict[str, TensorEntry]:
    """Index an open safetensors file, which is at its start; raises as `index_directory`."""
    try:
        (length,) = _LENGTH.unpack(stream.read(_LENGTH.size))
        if length > _MAX_HEADER_BYTES:
            raise CheckpointError(f"{file.name}: the header is too long")
        header = msgspec.json.decode(stream.read(length), type=dict[str, dict[str, Any]])
        file_bytes = os.fstat(stream.fileno()).st_size
        start = _LENGTH.size + length
        return {
            name: _entry(name, fields, file, start, file_bytes)
            for name, fields in header.items()
            if name != "__metadata__"
        }
    except (OSError, struct.error, KeyError, TypeError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{file.name} is corrupt: {error}") from error


def _entry(
    name: str, fields: dict[str, Any], file: Path, start: int, file_bytes: int
) -> TensorEntry:
    kind, shape = str(fields["dtype"]), tuple(int(size) for size in fields["shape"])
    begin, end = (int(offset) for offset in fields["data_offsets"])
    if prod(shape) <= 0 or plain_bytes(kind, shape) != end - begin:
        raise CheckpointError(f"{file.name}: the size of {name} does not fit its shape")
    if begin < 0 or start + end > file_bytes:
        raise CheckpointError(f"{file.name} ends inside tensor {name}")
    return TensorEntry(
        name=name,
        shape=shape,
        kind=kind,
        file=file,
        offset=start + begin,
        num_bytes=end - begin,
    )
