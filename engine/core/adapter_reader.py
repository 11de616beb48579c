"""Reads a PEFT directory: checks it, hashes it and brings its weights into the model's layout.

The weights file is read once, front to back: the very bytes that are hashed become the weights.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray

from engine.checkpoint.tensors import TensorEntry
from engine.core.adapter_config import MAX_CONFIG_BYTES, AdapterConfig, AdapterError, parse_config
from engine.core.adapter_files import (
    CONFIG_FILE,
    MAX_HEADER_BYTES,
    WEIGHTS_FILE,
    adapter_directory,
    file_version,
    header_size,
    index_weights,
    open_file,
)
from engine.core.adapter_layout import (
    LinearPart,
    Piece,
    PlannedUpdate,
    module_key,
    plan_updates,
)
from engine.core.memory import allocate
from engine.layers.lora import AdapterKernels, LowRankUpdate

_PREFIX = "base_model.model."
_DOWN, _UP = ".lora_A.weight", ".lora_B.weight"
_CPU = torch.device("cpu")

Matrix = NDArray[np.float32]


class ReadCancelledError(Exception):
    """Nobody waits for this adapter any longer."""


@dataclass(frozen=True, slots=True)
class ReadAdapter:
    """An adapter in memory, ready for the products."""

    content_hash: str
    """Hex SHA-256 of the configuration's facts and the weights file: its identity."""
    rank: int
    """The highest of all layers."""
    targets: tuple[str, ...]
    num_bytes: int
    updates: Mapping[str, Sequence[LowRankUpdate]]


class AdapterReader:
    """Reads adapters of one model.

    Args:
        parts: The model's linear layers, see `linear_parts`.
        max_rank: Highest rank that is taken.
        kernels: Say how the matrices lie in memory; by default as for torch.
    """

    def __init__(
        self,
        parts: Mapping[str, LinearPart],
        max_rank: int,
        kernels: AdapterKernels | None = None,
    ) -> None:
        self._parts = parts
        self._max_rank = max_rank
        self._joins = kernels is None or kernels.joins
        self._transposes = kernels is not None and kernels.transposes
        widths = sum(part.num_rows + part.num_columns for part in parts.values())
        self._max_file_bytes = 4 * max_rank * widths + MAX_HEADER_BYTES

    def read(self, path: Path, should_stop: Callable[[], bool] = lambda: False) -> ReadAdapter:
        """Read the adapter in a directory. Any thread may call it.

        Args:
            path: Of the directory; its two files must really lie in it.
            should_stop: Asked before each tensor.

        Raises:
            AdapterError: it cannot be used; the text says why.
            ReadCancelledError: `should_stop` said so.
        """
        directory = adapter_directory(path)
        with open_file(directory, CONFIG_FILE, MAX_CONFIG_BYTES) as file:
            config = parse_config(file.read(MAX_CONFIG_BYTES), self._max_rank)
        with open_file(directory, WEIGHTS_FILE, self._max_file_bytes) as file:
            before = file_version(file)
            header_bytes = header_size(file)
            entries = index_weights(file, header_bytes, before[0])
            pieces = self._pieces(entries, config)
            planned = plan_updates(list(pieces.by_module.values()), joins=self._joins)
            blank = _blank_updates(planned, transposes=self._transposes)
            stream = _Stream(file, config, should_stop)
            adapter = _read_weights(stream, header_bytes, pieces, (planned, blank))
            if file_version(file) != before:
                raise AdapterError(f"{WEIGHTS_FILE} changed while it was read")
        return adapter

    def _pieces(self, entries: Sequence[TensorEntry], config: AdapterConfig) -> "_Pieces":
        """Check every tensor's name and shape, and that they come in pairs."""
        found: dict[str, dict[str, TensorEntry]] = {_DOWN: {}, _UP: {}}
        pieces: dict[str, Piece] = {}
        for entry in entries:
            module, kind = _split(entry.name)
            key = module_key(module) or ""
            part = self._parts.get(key)
            if part is None:
                raise AdapterError(
                    f"tensor {entry.name}: the model has no linear layer {module} that LoRA "
                    "could change"
                )
            if key in found[kind]:
                raise AdapterError(f"tensor {entry.name} is there twice, under two names")
            rank = config.rank_of(module)
            _check_shape(
                entry, (rank, part.num_columns) if kind == _DOWN else (part.num_rows, rank)
            )
            found[kind][key] = entry
            pieces[key] = Piece(key, part, rank)
        for key in pieces:
            for kind, other in ((_DOWN, _UP), (_UP, _DOWN)):
                if key not in found[kind]:
                    raise AdapterError(f"tensor {found[other][key].name} has no {kind[1:7]}")
        if not pieces:
            raise AdapterError(f"{WEIGHTS_FILE} has no tensors")
        self._check_listed(config, pieces)
        return _Pieces(pieces, tuple(entries))

    def _check_listed(self, config: AdapterConfig, pieces: Mapping[str, Piece]) -> None:
        here = {_target(key) for key in self._parts}
        given = {_target(key) for key in pieces}
        for target in config.targets:
            name = target.rsplit(".", 1)[-1]
            if name in here and name not in given:
                raise AdapterError(f"{CONFIG_FILE} lists {target}, but there are no weights for it")


@dataclass(frozen=True, slots=True)
class _Pieces:
    """What is in a weights file, checked."""

    by_module: Mapping[str, Piece]
    entries: tuple[TensorEntry, ...]
    """In the file's order."""


_Layout = tuple[list[PlannedUpdate], list[LowRankUpdate]]
"""What becomes one update, and the memory for each of them."""


class _Stream:
    """The weights file, front to back, hashed on the way."""

    def __init__(
        self, file: BinaryIO, config: AdapterConfig, should_stop: Callable[[], bool]
    ) -> None:
        self.config = config
        self._file = file
        self._should_stop = should_stop
        self._hash = hashlib.sha256(config.canonical() + b"\n")

    def take(self, num_bytes: int, what: str) -> bytes:
        """Return the next bytes of the file."""
        if self._should_stop():
            raise ReadCancelledError
        content = self._file.read(num_bytes)
        if len(content) != num_bytes:
            raise AdapterError(f"{WEIGHTS_FILE} ends inside {what}")
        self._hash.update(content)
        return content

    def content_hash(self) -> str:
        """Return the hash of all that was taken."""
        return self._hash.hexdigest()


def _read_weights(
    stream: _Stream, header_bytes: int, pieces: _Pieces, layout: _Layout
) -> ReadAdapter:
    planned, blank = layout
    places = _places(planned, blank)
    stream.take(header_bytes, "its header")
    for entry in pieces.entries:
        module, kind = _split(entry.name)
        key = module_key(module) or ""
        values = _decoded(entry, stream.take(entry.num_bytes, f"tensor {entry.name}"))
        if kind == _UP:
            with np.errstate(over="ignore"):  # found by the next check
                values = values * np.float32(stream.config.scale_of(module))
        if not np.isfinite(values).all():
            raise AdapterError(f"tensor {entry.name} has values that are not finite")
        down, up = places[key]
        (up if kind == _UP else down)[...] = values
    updates: dict[str, list[LowRankUpdate]] = {}
    for plan, update in zip(planned, blank, strict=True):
        updates.setdefault(plan.parameter, []).append(update)
    return ReadAdapter(
        content_hash=stream.content_hash(),
        rank=max(piece.rank for piece in pieces.by_module.values()),
        targets=tuple(sorted({_target(key) for key in pieces.by_module})),
        num_bytes=sum(update.num_bytes for update in blank),
        updates=updates,
    )


def _blank_updates(planned: Sequence[PlannedUpdate], *, transposes: bool) -> list[LowRankUpdate]:
    """Return zeroed updates in one block of memory, which goes back to the system with them."""
    shapes: dict[str, tuple[int, int]] = {}
    for index, plan in enumerate(planned):
        columns, rank = plan.up_shape
        up_shape = (rank, columns) if transposes else (columns, rank)
        shapes |= {f"{index}.down": plan.down_shape, f"{index}.up": up_shape}
    block = allocate(shapes, torch.float32, _CPU)
    updates: list[LowRankUpdate] = []
    for index, plan in enumerate(planned):
        up = block[f"{index}.up"]
        up = up.T if transposes else up
        updates.append(LowRankUpdate(plan.first_row, block[f"{index}.down"], up))
    return updates


def _places(
    planned: Sequence[PlannedUpdate], updates: Sequence[LowRankUpdate]
) -> dict[str, tuple[Matrix, Matrix]]:
    """Return where each module's A and B go."""
    places: dict[str, tuple[Matrix, Matrix]] = {}
    for plan, update in zip(planned, updates, strict=True):
        down, up, above = update.down.numpy(), update.up.numpy(), 0
        for piece in plan.pieces:
            first = piece.part.first_row - plan.first_row
            ranks = slice(above, above + piece.rank)
            places[piece.module] = down[ranks], up[first : first + piece.part.num_rows, ranks]
            above += piece.rank
    return places


def _decoded(entry: TensorEntry, content: bytes) -> Matrix:
    match entry.kind:
        case "F32":
            values = np.frombuffer(content, np.float32)
        case "F16":
            values = np.frombuffer(content, np.float16).astype(np.float32)
        case _:  # BF16: the upper half of a float32
            bits = np.frombuffer(content, np.uint16).astype(np.uint32)
            values = np.left_shift(bits, 16).view(np.float32)
    return values.reshape(entry.shape)


def _split(name: str) -> tuple[str, str]:
    """Return the module that a tensor belongs to, and which of its two matrices it is."""
    for kind in (_DOWN, _UP):
        if name.startswith(_PREFIX) and name.endswith(kind):
            return name[len(_PREFIX) : -len(kind)], kind
    raise AdapterError(f"tensor {name} is neither A nor B of a LoRA adapter")


def _check_shape(entry: TensorEntry, expected: tuple[int, int]) -> None:
    if entry.shape != expected:
        raise AdapterError(f"tensor {entry.name} has shape {entry.shape}, expected {expected}")


def _target(key: str) -> str:
    return key.rsplit(".", 1)[-1]
