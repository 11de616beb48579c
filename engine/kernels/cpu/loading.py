"""Loads a model's weights for the CPU kernels: mapped from the weight cache, or packed."""

import logging
import mmap
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from math import isfinite
from pathlib import Path
from typing import Literal

import msgspec
import torch
from torch import Tensor

from engine.checkpoint.checkpoint import Checkpoint
from engine.checkpoint.tensors import TensorEntry
from engine.kernels.cpu.content_hash import identity_of
from engine.kernels.cpu.packing import RowSource, Squares
from engine.kernels.cpu.quantization import QuantizationChoice
from engine.kernels.cpu.weight_cache import WeightCache
from engine.kernels.cpu.weight_plan import (
    PlannedSegment,
    PlannedTensor,
    PlannedWeight,
    WeightPlan,
    make_plan,
    tensor_in,
)
from engine.kernels.cpu.weights import Format
from engine.models.parameters import Parameter, Weights

logger = logging.getLogger(__name__)

BytesDone = Callable[[int, int], None]
"""Called with (done, total) bytes of the checkpoint's files."""

LAYOUT_VERSION = 1
"""Of the bytes that packing makes; a change makes cached weights worthless. They are the same for
all instruction sets."""

_PIECE_BYTES = 2 << 20
"""Stored bytes that one thread reads and packs at a time."""


class Conversion(msgspec.Struct, frozen=True):
    """How far weights are from those of the file, where the format could not hold these exactly.

    Errors are root mean squares, as a part of the root mean square of the values.
    """

    worst: float
    worst_name: str
    mean: float

    def __str__(self) -> str:
        """Return it for operators."""
        return (
            f"converted weights are {100 * self.mean:.2f} % off (root mean square; at most "
            f"{100 * self.worst:.2f} %, {self.worst_name})"
        )


class _Header(msgspec.Struct, frozen=True):
    """What the cache keeps beside the weights."""

    key: str
    plan: WeightPlan
    conversion: Conversion | None


class CpuWeightLoader:
    """Fills parameters; needs little more memory than the result.

    Args:
        checkpoint: Where the tensors are.
        choice: In which formats they are kept.
        cache: Where packed weights are kept; None: nowhere.
        num_threads: That pack.
        progress: Told after each piece.
    """

    cache_state: Literal["off", "hit", "miss"] = "off"
    conversion: Conversion | None = None

    def __init__(
        self,
        checkpoint: Checkpoint,
        choice: QuantizationChoice,
        cache: WeightCache | None,
        num_threads: int,
        progress: BytesDone,
    ) -> None:
        self._checkpoint = checkpoint
        self._choice = choice
        self._cache = cache
        self._num_threads = num_threads
        self._progress = progress
        self._reported = (0, 0)

    @property
    def quantization_reason(self) -> str:
        """Return why weights are kept so, and after `load` how far they are from the file's."""
        reason = self._choice.reason
        return reason if self.conversion is None else f"{reason}; {self.conversion}"

    def load(self, parameters: Sequence[Parameter]) -> Weights:
        """Load every parameter.

        Raises:
            CheckpointError: a tensor is missing, has another shape, or cannot be read.
            MemoryError: there is no memory.
        """
        entries: dict[str, TensorEntry] = {}
        for parameter in parameters:
            for entry in self._checkpoint.stacked(parameter.sources, parameter.shape):
                entries[entry.name] = entry
        plan = make_plan(parameters, entries, self._choice)
        total = sum(entry.num_bytes for entry in entries.values())
        self._reported = (0, total)
        block = self._packed(plan, entries) if self._cache is None else self._cached(plan, entries)
        self._report(total, total)
        if self.conversion is not None:
            logger.info("%s", self.conversion)
        return plan.weights_in(block)

    def _cached(self, plan: WeightPlan, entries: Mapping[str, TensorEntry]) -> Tensor:
        assert self._cache is not None, "the caller looked"
        files = sorted({entry.file for entry in entries.values()})
        before = [identity_of(file) for file in files]
        key = self._cache.key(files, _layout(plan, entries, files), self._repeat)
        block = self._from_cache(key, plan)
        if block is not None:
            self.cache_state = "hit"
            return block
        self.cache_state = "miss"
        block = self._packed(plan, entries)
        if [identity_of(file) for file in files] != before:
            logger.warning("the model's files changed while they were read: not cached")
            return block
        header = msgspec.msgpack.encode(_Header(key, plan, self.conversion))
        if not self._cache.store(key, header, block, self._repeat):
            return block
        del block  # its memory goes before the file's pages come, which all engines share
        mapped = self._from_cache(key, plan)
        return self._packed(plan, entries) if mapped is None else mapped

    def _from_cache(self, key: str, plan: WeightPlan) -> Tensor | None:
        assert self._cache is not None, "the caller looked"
        found = self._cache.load(key, self._repeat)
        if found is None:
            return None
        try:
            header = msgspec.msgpack.decode(found.header, type=_Header)
        except msgspec.MsgspecError:
            header = None
        if (
            header is None
            or (header.key, header.plan) != (key, plan)
            or found.block.nbytes != plan.num_bytes
        ):
            logger.warning("cached weights do not fit this model, they are packed anew")
            return None
        self.conversion = header.conversion
        return found.block

    def _packed(self, plan: WeightPlan, entries: Mapping[str, TensorEntry]) -> Tensor:
        block = _memory(plan.num_bytes)
        for planned in plan.tensors:
            self._fill(planned, block)
        packing = _Packing(plan, entries, block)
        with ThreadPoolExecutor(self._num_threads, "pack") as threads:
            self.conversion = packing.run(threads, self._report)
        return block

    def _report(self, done: int, total: int) -> None:
        self._reported = (done, total)
        self._progress(done, total)

    def _repeat(self) -> None:
        """Say that the load goes on, though no further part of the files was packed."""
        self._progress(*self._reported)

    def _fill(self, planned: PlannedTensor, block: Tensor) -> None:
        target, first = tensor_in(block, planned.offset, planned.shape), 0
        for source in planned.sources:
            values = torch.from_numpy(self._checkpoint.read(source))
            if self._checkpoint.tensors[source].kind == "BF16":
                values = values.view(torch.bfloat16)
            target[first : first + values.shape[0]] = values
            first += values.shape[0]


def _layout(plan: WeightPlan, entries: Mapping[str, TensorEntry], files: Sequence[Path]) -> bytes:
    """Return all that packed weights depend on besides the content of files."""
    stored = [
        (
            entry.name,
            entry.shape,
            entry.kind,
            files.index(entry.file),
            entry.offset,
            entry.num_bytes,
            entry.interleaved_heads,
        )
        for entry in entries.values()
    ]
    return msgspec.msgpack.encode((LAYOUT_VERSION, plan, stored))


class _Packing:
    """Packs all matrices of a plan, piece by piece."""

    def __init__(self, plan: WeightPlan, entries: Mapping[str, TensorEntry], block: Tensor) -> None:
        self._plan = plan
        self._entries = entries
        self._block = block

    def run(self, threads: ThreadPoolExecutor, progress: BytesDone) -> Conversion | None:
        """Pack; returns what that did to the values."""
        pieces: dict[Future[Squares], tuple[str, int]] = {}
        for weight in self._plan.weights:
            for segment in weight.segments:
                self._submit(threads, weight, segment, pieces)
        done, total = 0, sum(size for _, size in pieces.values())
        squares: dict[str, Squares] = {}
        try:
            for piece in as_completed(pieces):
                name, size = pieces[piece]
                squares[name] = squares.get(name, Squares()) + piece.result()
                done += size
                progress(done, total)
        except BaseException:
            threads.shutdown(cancel_futures=True)
            raise
        broken = [name for name, found in squares.items() if not isfinite(found.values)]
        if broken:
            logger.warning("weights are infinite or no numbers in %s", ", ".join(sorted(broken)))
        converted = {
            name: found for name, found in squares.items() if found.values and name not in broken
        }
        if not converted:
            return None
        worst = max(converted, key=lambda name: converted[name].relative)
        mean = sum(converted.values(), Squares()).relative
        return Conversion(converted[worst].relative, worst, mean)

    def _submit(
        self,
        threads: ThreadPoolExecutor,
        weight: PlannedWeight,
        segment: PlannedSegment,
        pieces: dict[Future[Squares], tuple[str, int]],
    ) -> None:
        source = RowSource([self._entries[name] for name in segment.sources], weight.is_gate_up)
        panel_bytes = segment.num_bytes // source.num_panels
        stored_bytes = max(1, source.stored_bytes() // source.num_panels)
        step = max(1, _PIECE_BYTES // stored_bytes)
        for first in range(0, source.num_panels, step):
            panels = range(first, min(first + step, source.num_panels))
            start = segment.offset + first * panel_bytes
            out = self._block[start : start + len(panels) * panel_bytes]
            piece = threads.submit(source.pack, panels, Format(segment.format), weight.width, out)
            pieces[piece] = (weight.names[0], len(panels) * stored_bytes)


def _memory(num_bytes: int) -> Tensor:
    """Return zeros in a mapping of their own, which ends with the last view of it."""
    try:
        pages = mmap.mmap(-1, max(num_bytes, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(f"there is no memory for {num_bytes} bytes of weights") from error
    if hasattr(mmap, "MADV_HUGEPAGE"):
        pages.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(pages, dtype=torch.uint8)[:num_bytes]
