"""Reads the header of a GGUF file: metadata and tensor directory.

The `gguf` package's reader turns every vocabulary entry into arrays, which takes seconds; this one
skips over arrays and decodes one only when asked, and needs no numpy.

Source:
    https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import mmap
import struct
from pathlib import Path

import msgspec

from engine.checkpoint.errors import CheckpointError
from engine.checkpoint.files import regular_file

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_STRING, _ARRAY, _BOOL = 8, 9, 7
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 10: "Q", 11: "q", 12: "d"}
_U64 = struct.Struct("<Q")
_MAX_TENSOR_DIMENSIONS = 4


class GgufArray(msgspec.Struct, frozen=True):
    """Where an array lies in the file; `read_array` decodes it."""

    element_type: int
    count: int
    offset: int
    end: int


GgufValue = int | float | bool | str | GgufArray


class GgufTensor(msgspec.Struct, frozen=True):
    """One entry of the tensor directory."""

    name: str
    shape: tuple[int, ...]
    """Outermost dimension first, as in torch; GGUF itself stores the reverse."""
    type_id: int
    """A key of `gguf_kinds.KINDS`."""
    offset: int
    """From the start of the file, bytes."""


class GgufHeader(msgspec.Struct, frozen=True):
    """Everything in front of the tensors' bytes."""

    metadata: dict[str, GgufValue]
    tensors: tuple[GgufTensor, ...]
    data_offset: int
    file_bytes: int


def read_header(path: Path) -> GgufHeader:
    """Parse the header of the file.

    Raises:
        CheckpointError: it is no GGUF file, is truncated or inconsistent.
    """
    try:
        # a mapping, so that only the header's pages are read; closed again before the weights load
        with (
            regular_file(path).open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view,
        ):
            return _parse(view)
    except (struct.error, IndexError, OverflowError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path.name}: the GGUF header is truncated or corrupt") from error
    except (OSError, ValueError) as error:  # ValueError: an empty file cannot be mapped
        raise CheckpointError(f"{path.name}: {error}") from error
    except CheckpointError as error:
        raise CheckpointError(f"{path.name}: {error}") from error


def read_array(path: Path, array: GgufArray) -> list[int] | list[float] | list[str]:
    """Decode one array of the metadata.

    Raises:
        CheckpointError: the file changed or holds invalid text.
    """
    try:
        with path.open("rb") as file:
            file.seek(array.offset)
            content = file.read(array.end - array.offset)
        if array.element_type == _STRING:
            return _strings(content, array.count)
        return list(struct.unpack(f"<{array.count}{_code(array.element_type)}", content))
    except (OSError, struct.error, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path.name}: an array of the header cannot be read") from error


def _code(element_type: int) -> str:
    if element_type == _BOOL:
        return "?"
    code = _SCALARS.get(element_type)
    if code is None:
        raise CheckpointError(f"unknown GGUF value type {element_type}")
    return code


def _strings(content: bytes, count: int) -> list[str]:
    found: list[str] = []
    at = 0
    for _ in range(count):
        start = at + _U64.size
        at = start + _U64.unpack_from(content, at)[0]
        found.append(content[start:at].decode())
    return found


class _Cursor:
    """Reads values one after the other and never past the end of the file."""

    def __init__(self, view: mmap.mmap) -> None:
        self._view = view
        self.size = len(view)
        self.at = 0

    def scalar(self, code: str) -> int | float | bool:
        value: int | float | bool = struct.unpack_from(f"<{code}", self._view, self.at)[0]
        self.at += struct.calcsize(f"<{code}")
        return value

    def count(self) -> int:
        """Read a 64-bit count of things that take at least one byte each."""
        value = int(self.scalar("Q"))
        if value > self.size - self.at:
            raise CheckpointError(f"a length of {value} reaches past the end of the file")
        return value

    def text(self) -> str:
        length = self.count()
        content = self._view[self.at : self.at + length]
        self.at += length
        return content.decode()

    def value(self, value_type: int) -> GgufValue:
        if value_type == _STRING:
            return self.text()
        if value_type == _ARRAY:
            return self._array()
        return self.scalar(_code(value_type))

    def _array(self) -> GgufArray:
        element_type, count = int(self.scalar("I")), self.count()
        start = self.at
        if element_type == _STRING:
            self._skip_strings(count)
        else:
            self.at += count * struct.calcsize(f"<{_code(element_type)}")
        if self.at > self.size:
            raise CheckpointError("an array reaches past the end of the file")
        return GgufArray(element_type, count, start, self.at)

    def _skip_strings(self, count: int) -> None:
        at, view, length_at = self.at, self._view, _U64.unpack_from
        for _ in range(count):
            at += 8 + length_at(view, at)[0]
        self.at = at


def _parse(view: mmap.mmap) -> GgufHeader:
    if view[:4] != _MAGIC:
        raise CheckpointError("not a GGUF file")
    cursor = _Cursor(view)
    cursor.at = len(_MAGIC)
    version = cursor.scalar("I")
    if version not in _VERSIONS:
        raise CheckpointError(f"GGUF version {version} is not supported")
    num_tensors, num_values = cursor.count(), cursor.count()
    metadata: dict[str, GgufValue] = {}
    for _ in range(num_values):
        key = cursor.text()
        metadata[key] = cursor.value(int(cursor.scalar("I")))
    entries = [_tensor(cursor) for _ in range(num_tensors)]
    data_offset = _aligned(cursor.at, metadata.get("general.alignment", 32))
    tensors = tuple(
        msgspec.structs.replace(entry, offset=entry.offset + data_offset) for entry in entries
    )
    return GgufHeader(metadata, tensors, data_offset, cursor.size)


def _tensor(cursor: _Cursor) -> GgufTensor:
    name = cursor.text()
    num_dimensions = int(cursor.scalar("I"))
    if not 1 <= num_dimensions <= _MAX_TENSOR_DIMENSIONS:
        raise CheckpointError(f"tensor {name!r} has {num_dimensions} dimensions")
    sizes = [int(cursor.scalar("Q")) for _ in range(num_dimensions)]
    type_id, offset = int(cursor.scalar("I")), int(cursor.scalar("Q"))
    return GgufTensor(name, tuple(reversed(sizes)), type_id, offset)


def _aligned(offset: int, alignment: GgufValue) -> int:
    if not isinstance(alignment, int) or alignment <= 0:
        raise CheckpointError(f"alignment is out of range: {alignment}")
    return -(-offset // alignment) * alignment
