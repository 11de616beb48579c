"""Size and memory of the paged KV cache.

Layers come in two kinds with a pool of blocks each: those that see the whole context, and those
with a sliding window, which keep only a ring of blocks per request.
"""

import os
from dataclasses import dataclass

import torch

from engine.checkpoint.model_config import ModelConfig
from engine.config import EngineConfig
from engine.core.batch import ConfigError
from engine.core.memory import allocate
from engine.kernels.backend import LayerCache

_DEFAULT_CPU_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class CacheSize:
    """How much context fits."""

    num_blocks: int
    """Of the full-attention layers. Without such layers they cost nothing and only bound the
    number of requests."""
    block_size: int
    block_bytes: int
    """Keys and values of one block in all full-attention layers."""
    max_model_len: int
    num_window_blocks: int = 0
    window_block_bytes: int = 0
    """Keys and values of one block in all sliding-window layers."""
    sliding_window: int | None = None

    @property
    def total_bytes(self) -> int:
        """Return the size of the whole cache."""
        full = self.num_blocks * self.block_bytes
        return full + self.num_window_blocks * self.window_block_bytes


@dataclass(frozen=True, slots=True)
class _Needs:
    """What requests need, in blocks and bytes."""

    block_size: int
    block_bytes: int
    window_block_bytes: int
    ring_tokens: int
    """Tokens that a request's window blocks must hold at most; 0 without window layers."""

    def blocks(self, tokens: int) -> int:
        """Full-attention blocks of one request."""
        return -(-tokens // self.block_size)

    def window_blocks(self, tokens: int) -> int:
        """Window blocks of one request: a whole window and the chunk that is being computed."""
        if not self.ring_tokens:
            return 0
        return min(self.blocks(tokens), self.blocks(self.ring_tokens) + 1)

    def bytes_for(self, tokens: int) -> int:
        """Bytes of one request alone."""
        full = self.blocks(tokens) * self.block_bytes
        return full + self.window_blocks(tokens) * self.window_block_bytes


def plain_block_bytes(config: EngineConfig, model: ModelConfig, dtype: torch.dtype) -> int:
    """Return the size of a block of one layer whose keys and values are tensors of `dtype`."""
    return 2 * model.num_kv_heads * model.head_dim * dtype.itemsize * config.block_size


def plan_cache(
    config: EngineConfig, model: ModelConfig, layer_bytes: int, device: torch.device
) -> CacheSize:
    """Decide the number of blocks and the longest context.

    Args:
        config: Says how much memory there is.
        model: Its layers and windows.
        layer_bytes: Of a block in one layer.
        device: Where the cache is.

    Raises:
        ConfigError: the cache is too small, or `max_model_len` is more than the model or it hold.
    """
    if config.block_size < 1:
        raise ConfigError(f"block_size must be positive, got {config.block_size}")
    if config.max_model_len is not None and not (
        1 <= config.max_model_len <= model.max_position_embeddings
    ):
        raise ConfigError(
            f"max_model_len is {config.max_model_len}, "
            f"the model holds 1 to {model.max_position_embeddings}"
        )
    needs = _needs(config, model, layer_bytes)
    budget = _budget_bytes(config, device)
    length = _context_length(config, model, needs, budget)
    num_blocks, num_window_blocks = _share(needs, budget, length, config)
    return CacheSize(
        num_blocks=num_blocks,
        block_size=config.block_size,
        block_bytes=needs.block_bytes,
        max_model_len=length,
        num_window_blocks=num_window_blocks,
        window_block_bytes=needs.window_block_bytes,
        sliding_window=model.sliding_window if num_window_blocks else None,
    )


def _needs(config: EngineConfig, model: ModelConfig, layer_bytes: int) -> _Needs:
    sliding = model.num_sliding_layers
    chunk = config.max_num_batched_tokens + config.speculative_tokens
    return _Needs(
        block_size=config.block_size,
        block_bytes=(model.num_layers - sliding) * layer_bytes,
        window_block_bytes=sliding * layer_bytes,
        ring_tokens=(model.sliding_window or 0) + chunk if sliding else 0,
    )


def _context_length(config: EngineConfig, model: ModelConfig, needs: _Needs, budget: int) -> int:
    """Return the longest context, which one request alone must be able to use."""
    longest = config.max_model_len or model.max_position_embeddings
    if needs.bytes_for(longest) <= budget:
        return longest
    if config.max_model_len is not None:
        raise ConfigError(
            f"a context of {longest} tokens needs a KV cache of {needs.bytes_for(longest)} bytes, "
            f"it has {budget}"
        )
    low, high = 0, needs.blocks(longest)  # in blocks: `low` fit, `high` do not
    while high - low > 1:
        middle = (low + high) // 2
        fits = needs.bytes_for(middle * needs.block_size) <= budget
        low, high = (middle, high) if fits else (low, middle)
    if not low:
        raise ConfigError(
            f"one block needs {needs.bytes_for(1)} bytes, the KV cache has {budget} bytes"
        )
    return low * needs.block_size


def _share(needs: _Needs, budget: int, length: int, config: EngineConfig) -> tuple[int, int]:
    """Divide the budget between full and window blocks.

    As many of the one as of the other, as short requests need it, but never so that one request of
    the longest context could not run. A budget that nobody chose is not spent on more than running
    requests can use.
    """
    usable = config.max_num_seqs * needs.blocks(length)
    usable_window = config.max_num_seqs * needs.window_blocks(length)
    is_chosen = config.kv_cache_bytes is not None
    most = budget if is_chosen and needs.block_bytes else usable
    most_window = budget if is_chosen else usable_window
    if not needs.ring_tokens:
        return min(budget // needs.block_bytes, most), 0
    if not needs.block_bytes:
        return most, min(budget // needs.window_block_bytes, most_window)
    even = budget // (needs.block_bytes + needs.window_block_bytes)
    window = min(even, most_window, _rest(budget, needs.blocks(length), needs))
    window = max(window, needs.window_blocks(length))
    full = (budget - window * needs.window_block_bytes) // needs.block_bytes
    return min(full, most), window


def _rest(budget: int, num_blocks: int, needs: _Needs) -> int:
    """Return how many window blocks fit beside so many full ones."""
    return (budget - num_blocks * needs.block_bytes) // needs.window_block_bytes


def allocate_cache(
    size: CacheSize, model: ModelConfig, dtype: torch.dtype, device: torch.device
) -> list[LayerCache]:
    """Make the cache of every layer; on the CPU pages become resident when first written.

    Raises:
        ConfigError: there is not that much memory.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    for layer in range(model.num_layers):
        blocks = size.num_window_blocks if model.is_sliding(layer) else size.num_blocks
        shape = (blocks, size.block_size, model.num_kv_heads, model.head_dim)
        shapes |= {f"keys.{layer}": shape, f"values.{layer}": shape}
    try:
        tensors = allocate(shapes, dtype, device)
    except (OSError, RuntimeError) as error:  # the system's mapping, torch on a device
        raise ConfigError(f"no memory for a KV cache of {size.total_bytes} bytes") from error
    return [
        LayerCache(tensors[f"keys.{layer}"], tensors[f"values.{layer}"])
        for layer in range(model.num_layers)
    ]


def _budget_bytes(config: EngineConfig, device: torch.device) -> int:
    if config.kv_cache_bytes is not None:
        _check_fits(config.kv_cache_bytes, device)
        return config.kv_cache_bytes
    if device.type == "cuda":
        free_bytes, _ = torch.cuda.mem_get_info(device)
        return free_bytes // 2
    return _DEFAULT_CPU_BYTES


def _check_fits(cache_bytes: int, device: torch.device) -> None:
    """Refuse what would only fail later, when the pages are written."""
    if device.type == "cpu":
        memory_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        if cache_bytes > memory_bytes:
            raise ConfigError(
                f"kv_cache_bytes is {cache_bytes}, this machine has {memory_bytes} bytes of memory"
            )
