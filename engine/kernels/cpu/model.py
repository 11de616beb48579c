"""A model that the C++ kernels compute, a whole step in one call."""

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.checkpoint.model_config import ModelConfig
from engine.kernels.backend import LinearWeight
from engine.kernels.cpu.adapters import CpuAdapters
from engine.kernels.cpu.build import CACHE_DTYPES, CpuCache, ModelWriter
from engine.kernels.cpu.library import BAD_VALUE, OK, Pool, library
from engine.kernels.cpu.sampling import CpuSampling
from engine.kernels.cpu.step import StepWriter
from engine.kernels.model import (
    KernelFacts,
    LoadedModel,
    PackedStep,
    StepValueError,
    WeightsSize,
)
from engine.layers.linear import StepAdapters
from engine.models.decoder import DecoderParts

MOST_TOKENS = 1 << 18
"""Most rows that a step of `qd_engine_create` may have."""
_KEPT_ROWS = 64
"""Rows of logits whose memory is kept between steps: prompt scores need more now and then."""


@dataclass(frozen=True, slots=True)
class CpuParts:
    """What a `CpuModel` is made of."""

    config: ModelConfig
    layers: DecoderParts
    embedding: LinearWeight
    cache: CpuCache
    pool: Pool
    max_positions: int
    max_tokens: int
    """Most rows of a step."""
    max_requests: int


class CpuModel(LoadedModel):
    """Implements `LoadedModel`.

    Args:
        parts: Weights, memory and threads; the pool stays its owner's.
        facts: About the kernels; `path` is the instruction set that is used.
        weights: Their size.

    Raises:
        MemoryError: there is no memory for what a step needs.
    """

    checks_values = True

    def __init__(self, parts: CpuParts, facts: KernelFacts, weights: WeightsSize) -> None:
        self.facts = facts
        self.weights = weights
        self.sampling = CpuSampling(parts.pool, facts.path)
        self._parts = parts
        self._cache = parts.cache
        self._vocab_size = parts.config.vocab_size
        self._writer = StepWriter(parts.max_positions, has_window=parts.cache.num_window_blocks > 0)
        self._logits = torch.empty(0, self._vocab_size, dtype=torch.float32)
        model = ModelWriter(
            parts.config, parts.layers, parts.embedding, parts.cache, parts.max_positions
        )
        self._engine: int | None = library().qd_engine_create(
            model.write(), parts.pool.handle, facts.path.encode(), parts.max_tokens,
            parts.max_requests,
        )  # fmt: skip
        self._kept = model.kept
        if self._engine is None:
            raise MemoryError("there is no memory for the kernels, or a size is out of range")

    def padded_rows(self, num_rows: int) -> int:
        """Return the same number: nothing is padded."""
        return num_rows

    def forward(self, step: PackedStep, adapters: StepAdapters | None) -> Tensor:
        """Compute one step; other threads of the process run meanwhile."""
        assert self._engine is not None, "the model was closed"
        logits = self._room(len(step.sampled_rows))
        rows = None
        if adapters is not None:
            assert isinstance(adapters, CpuAdapters), "made by the store of this model"
            rows = adapters.rows
        structure = self._writer.write(step, logits, rows)
        status = library().qd_forward(self._engine, structure)
        if status == BAD_VALUE:
            raise StepValueError("a token, block or row is out of bounds")
        if status != OK:
            raise MemoryError("there is no memory for this step")
        return logits

    def clear_blocks(self, num_blocks: int) -> None:
        """Empty the first blocks of every layer."""
        config, cache = self._parts.config, self._cache
        block_bytes = cache_block_bytes(config, cache.dtype, cache.block_size)
        for layer in cache.layers:
            layer[: num_blocks * block_bytes].zero_()

    def close(self) -> None:
        """End the engine; weights and cache go with their last reference."""
        engine, self._engine = self._engine, None
        if engine is not None:
            library().qd_engine_destroy(engine)
        self._kept.clear()

    def __del__(self) -> None:
        # a constructor that failed has none
        if getattr(self, "_engine", None) is not None:
            self.close()

    def _room(self, num_rows: int) -> Tensor:
        """Return memory for so many rows of logits."""
        if num_rows > self._logits.shape[0]:
            found = torch.empty(num_rows, self._vocab_size, dtype=torch.float32)
            if num_rows > _KEPT_ROWS:
                return found
            self._logits = found
        return self._logits[:num_rows]


def cache_block_bytes(config: ModelConfig, cache_dtype: str, block_size: int) -> int:
    """Return the size of a block of the KV cache in one layer."""
    return library().qd_cache_block_bytes(
        CACHE_DTYPES[cache_dtype], block_size, config.num_kv_heads, config.head_dim
    )
