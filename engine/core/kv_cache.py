"""Size and memory of the paged KV cache."""

import os
from dataclasses import dataclass

import torch

from engine.checkpoint.model_config import ModelConfig
from engine.config import EngineConfig
from engine.core.batch import ConfigError
from engine.core.memory import allocate
from engine.kernels.backend import LayerCache

_DEFAULT_CPU_BYTES = 512 << 20


@dataclass(frozen=True, slots=True)
class CacheSize:
    """How much context fits."""

    num_blocks: int
    block_size: int
    block_bytes: int
    """Keys and values of one block in all layers."""
    max_model_len: int

    @property
    def total_bytes(self) -> int:
        """Return the size of the whole cache."""
        return self.num_blocks * self.block_bytes


def plan_cache(
    config: EngineConfig, model: ModelConfig, dtype: torch.dtype, device: torch.device
) -> CacheSize:
    """Decide the number of blocks and the longest context.

    Raises:
        ConfigError: the cache is too small, or `max_model_len` is more than the model or it hold.
    """
    if config.block_size < 1:
        raise ConfigError(f"block_size must be positive, got {config.block_size}")
    position_values = 2 * model.num_layers * model.num_kv_heads * model.head_dim
    block_bytes = position_values * dtype.itemsize * config.block_size
    num_blocks = _num_blocks(config, model, block_bytes, device)
    capacity = num_blocks * config.block_size
    if config.max_model_len is None:
        limit = max(1, min(model.max_position_embeddings, capacity))
    else:
        limit = config.max_model_len
    if not 1 <= limit <= model.max_position_embeddings:
        raise ConfigError(
            f"max_model_len is {limit}, the model holds 1 to {model.max_position_embeddings}"
        )
    if limit > capacity:
        needed = -(-limit // config.block_size) * block_bytes
        raise ConfigError(
            f"a context of {limit} tokens needs a KV cache of {needed} bytes, "
            f"it has {num_blocks * block_bytes}"
        )
    return CacheSize(num_blocks, config.block_size, block_bytes, limit)


def allocate_cache(
    size: CacheSize, model: ModelConfig, dtype: torch.dtype, device: torch.device
) -> list[LayerCache]:
    """Make the cache of every layer; on the CPU pages become resident when first written.

    Raises:
        ConfigError: there is not that much memory.
    """
    shape = (size.num_blocks, size.block_size, model.num_kv_heads, model.head_dim)
    names = [f"{part}.{layer}" for layer in range(model.num_layers) for part in ("keys", "values")]
    try:
        tensors = allocate(dict.fromkeys(names, shape), dtype, device)
    except (OSError, RuntimeError) as error:  # the system's mapping, torch on a device
        raise ConfigError(f"no memory for a KV cache of {size.total_bytes} bytes") from error
    return [
        LayerCache(tensors[f"keys.{layer}"], tensors[f"values.{layer}"])
        for layer in range(model.num_layers)
    ]


def _num_blocks(
    config: EngineConfig, model: ModelConfig, block_bytes: int, device: torch.device
) -> int:
    if config.kv_cache_bytes is not None:
        _check_fits(config.kv_cache_bytes, device)
        return config.kv_cache_bytes // block_bytes
    if device.type == "cuda":
        free_bytes, _ = torch.cuda.mem_get_info(device)
        available = free_bytes // 2
    else:
        available = _DEFAULT_CPU_BYTES
    longest = config.max_model_len or model.max_position_embeddings
    usable = config.max_num_seqs * -(-longest // config.block_size)
    return min(available // block_bytes, usable)


def _check_fits(cache_bytes: int, device: torch.device) -> None:
    """Refuse what would only fail later, when the pages are written."""
    if device.type == "cpu":
        memory_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        if cache_bytes > memory_bytes:
            raise ConfigError(
                f"kv_cache_bytes is {cache_bytes}, this machine has {memory_bytes} bytes of memory"
            )
