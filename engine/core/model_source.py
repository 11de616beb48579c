"""Where a model comes from: the checkpoint, the kernels that were chosen, and how it is loaded.

A source outlives the model: an engine that wakes loads the same model from it again.
"""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, cast

import torch

from engine.checkpoint.checkpoint import Checkpoint, CheckpointError
from engine.config import EngineConfig
from engine.core.batch import ConfigError, Progress
from engine.core.canary import PROMPT_LENGTH
from engine.core.kernel_choice import KernelChoice
from engine.core.kv_cache import CacheSize, allocate_cache, plain_block_bytes
from engine.core.memory import allocate
from engine.core.tensor_model import TensorModel, TensorParts
from engine.core.weights import WeightLoader
from engine.kernels.cpu.adapters import CpuAdapterKernels
from engine.kernels.cpu.build import CpuCache
from engine.kernels.cpu.library import Pool
from engine.kernels.cpu.loading import CpuWeightLoader
from engine.kernels.cpu.model import MOST_TOKENS, CpuModel, CpuParts, cache_block_bytes
from engine.kernels.cpu.quantization import QuantizationChoice, choose_quantization
from engine.kernels.cpu.weight_cache import WeightCache
from engine.kernels.model import KernelFacts, LoadedModel, WeightsSize
from engine.kernels.reference.backend import ReferenceBackend
from engine.layers.lora import AdapterKernels, TensorAdapters
from engine.models.blocks import EMBEDDING
from engine.models.decoder import Decoder
from engine.models.family import HEAD
from engine.models.parameters import Weights
from engine.models.registry import family_of

if TYPE_CHECKING:
    from engine.kernels.cpu.quantization import Asked


class ModelSource(ABC):
    """Loads one model, as often as it is asked to.

    Args:
        config: Of the engine.
        choice: Which kernels compute it.
    """

    block_bytes: int
    """Of a block of the KV cache in one layer."""
    adapter_kernels: AdapterKernels

    def __init__(self, config: EngineConfig, choice: KernelChoice) -> None:
        self.config = config
        self.choice = choice

    @abstractmethod
    def tune(self, checkpoint: Checkpoint) -> None:
        """Find out once what the kernels must know of this machine."""

    @abstractmethod
    def load(self, checkpoint: Checkpoint, size: CacheSize, progress: Progress) -> LoadedModel:
        """Read the weights and allocate the KV cache.

        Raises:
            ConfigError: the checkpoint cannot be read, or there is no memory.
        """


def make_source(
    config: EngineConfig, choice: KernelChoice, checkpoint: Checkpoint, device: torch.device
) -> ModelSource:
    """Return the source of a model on the kernels that were chosen.

    Raises:
        ConfigError: the checkpoint cannot be read, or there is no memory.
    """
    if choice.backend == "cpu":
        return CpuSource(config, choice, checkpoint)
    return TensorSource(config, choice, checkpoint, device)


class TensorSource(ModelSource):
    """For the torch backends."""

    def __init__(
        self,
        config: EngineConfig,
        choice: KernelChoice,
        checkpoint: Checkpoint,
        device: torch.device,
    ) -> None:
        super().__init__(config, choice)
        self._device = device
        self._kernels = ReferenceBackend()
        self.block_bytes = plain_block_bytes(config, checkpoint.config, choice.dtype.dtype)
        self.adapter_kernels = TensorAdapters(self._kernels, device)

    def tune(self, checkpoint: Checkpoint) -> None:
        """Probe the row counts at which products agree."""
        model = checkpoint.config
        shapes = family_of(model).shapes(model, self.choice.dtype.dtype, self._device)
        self._kernels.prepare(shapes)

    def load(self, checkpoint: Checkpoint, size: CacheSize, progress: Progress) -> LoadedModel:
        """Read, dequantize and pack for torch."""
        config, dtype, device = checkpoint.config, self.choice.dtype.dtype, self._device
        kernels, family = self._kernels, family_of(config)
        loader = WeightLoader(
            checkpoint, dtype, device, lambda done, total: progress("weights", done, total)
        )
        try:
            weights = loader.load(family.parameters(config), kernels)
        except CheckpointError as error:
            raise ConfigError(str(error)) from error
        except (OSError, torch.OutOfMemoryError) as error:
            raise ConfigError(f"no memory for the weights in {self.choice.dtype.name}") from error
        progress("kv_cache", 0, size.total_bytes)
        caches = allocate_cache(size, config, dtype, device)
        progress("kv_cache", size.total_bytes, size.total_bytes)
        embedding = weights.tensors[EMBEDDING]
        parts = family.parts(config, weights, dtype, kernels.logits_dtype(dtype, device))
        decoder = Decoder(config, embedding, parts, kernels, size.max_model_len)
        return TensorModel(
            TensorParts(decoder, caches, kernels, device, size.sliding_window),
            self._facts(),
            WeightsSize(weights.num_bytes, weights.num_bytes - embedding.nbytes),
        )

    def _facts(self) -> KernelFacts:
        return KernelFacts(
            backend=self._kernels.name,
            path=self.choice.path,
            reason=self.choice.reason,
            quantization="none",
            quantization_reason="these kernels compute with plain numbers",
            kv_cache_dtype=self.choice.dtype.name,
            num_threads=torch.get_num_threads(),
        )


class CpuSource(ModelSource):
    """For the C++ kernels.

    Raises:
        ConfigError: threads cannot be made, or steps would be too large.
    """

    def __init__(self, config: EngineConfig, choice: KernelChoice, checkpoint: Checkpoint) -> None:
        super().__init__(config, choice)
        self._num_threads = config.num_threads or torch.get_num_threads()
        try:
            self._pool = Pool(self._num_threads)
        except MemoryError as error:
            raise ConfigError(str(error)) from error
        self._max_tokens = _most_rows(config)
        self._kv_dtype = "bfloat16" if config.kv_cache_dtype == "auto" else config.kv_cache_dtype
        self._quantization = _quantization(config, checkpoint)
        model = checkpoint.config
        self.block_bytes = cache_block_bytes(model, self._kv_dtype, config.block_size)
        self.adapter_kernels = CpuAdapterKernels(model.num_layers, model.intermediate_size)

    def tune(self, checkpoint: Checkpoint) -> None:
        """Nothing depends on the machine but the instruction set, which is chosen."""

    def load(self, checkpoint: Checkpoint, size: CacheSize, progress: Progress) -> LoadedModel:
        """Map packed weights, or pack them."""
        config, family = checkpoint.config, family_of(checkpoint.config)
        weights, facts = self._weights(checkpoint, progress)
        progress("kv_cache", 0, size.total_bytes)
        cache = self._cache(checkpoint, size)
        progress("kv_cache", size.total_bytes, size.total_bytes)
        dtype = self.choice.dtype.dtype
        parts = CpuParts(
            config=config,
            layers=family.parts(config, weights, dtype, dtype),
            embedding=weights.linears[EMBEDDING],
            cache=cache,
            pool=self._pool,
            max_positions=size.max_model_len,
            max_tokens=self._max_tokens,
            max_requests=min(self.config.max_num_seqs, self._max_tokens),
        )
        try:
            return CpuModel(parts, facts, _size_of(weights))
        except MemoryError as error:
            raise ConfigError(str(error)) from error

    def _weights(self, checkpoint: Checkpoint, progress: Progress) -> tuple[Weights, KernelFacts]:
        loader = CpuWeightLoader(
            checkpoint,
            self._quantization,
            self._weight_cache(),
            self._num_threads,
            lambda done, total: progress("weights", done, total),
        )
        try:
            weights = loader.load(family_of(checkpoint.config).parameters(checkpoint.config))
        except (CheckpointError, MemoryError) as error:
            raise ConfigError(str(error)) from error
        return weights, KernelFacts(
            backend="cpu",
            path=self.choice.path,
            reason=self.choice.reason,
            quantization=self._quantization.name,
            quantization_reason=loader.quantization_reason,
            kv_cache_dtype=self._kv_dtype,
            num_threads=self._num_threads,
            weight_cache=loader.cache_state,
        )

    def _weight_cache(self) -> WeightCache | None:
        if self.config.weight_cache_dir is None:
            return None
        return WeightCache(Path(self.config.weight_cache_dir), self.config.weight_cache_bytes)

    def _cache(self, checkpoint: Checkpoint, size: CacheSize) -> CpuCache:
        model = checkpoint.config
        shapes: dict[str, tuple[int, ...]] = {}
        for layer in range(model.num_layers):
            blocks = size.num_window_blocks if model.is_sliding(layer) else size.num_blocks
            shapes[str(layer)] = (blocks * self.block_bytes,)
        try:
            memory = allocate(shapes, torch.uint8, torch.device("cpu"))
        except OSError as error:
            raise ConfigError(f"no memory for a KV cache of {size.total_bytes} bytes") from error
        return CpuCache(
            layers=[memory[str(layer)] for layer in range(model.num_layers)],
            dtype=self._kv_dtype,
            block_size=self.config.block_size,
            num_blocks=size.num_blocks,
            num_window_blocks=size.num_window_blocks,
        )


def _most_rows(config: EngineConfig) -> int:
    """Return how many rows a step may have.

    Raises:
        ConfigError: the kernels do not take as many.
    """
    # the engine's own steps may be larger than what requests get
    budget = max(config.max_num_batched_tokens, PROMPT_LENGTH)
    if budget + config.speculative_tokens > MOST_TOKENS:
        raise ConfigError(
            f"max_num_batched_tokens is {budget}; with speculative_tokens the cpu kernels take "
            f"{MOST_TOKENS} at most"
        )
    return budget + config.speculative_tokens


def _size_of(weights: Weights) -> WeightsSize:
    """Return the size; of a tied embedding each step reads all, as the head."""
    embedding, head = weights.linears[EMBEDDING], weights.linears[HEAD]
    looked_up = 0 if embedding is head else embedding.num_bytes
    return WeightsSize(weights.num_bytes, weights.num_bytes - looked_up)


def _quantization(config: EngineConfig, checkpoint: Checkpoint) -> QuantizationChoice:
    asked = cast("Asked", config.quantization)  # `choose_kernels` looked
    try:
        return choose_quantization(asked, checkpoint.tensors.values())
    except CheckpointError as error:
        raise ConfigError(str(error)) from error
