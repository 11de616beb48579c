"""The KV cache's size: what fits, how the budget is divided, what is refused."""

import pytest
import torch

from engine.checkpoint.model_config import ModelConfig
from engine.config import EngineConfig
from engine.core.batch import ConfigError
from engine.core.kv_cache import CacheSize, allocate_cache, plain_block_bytes, plan_cache

CPU = torch.device("cpu")
BLOCK = 16
LAYER_BLOCK_BYTES = 2 * 2 * 8 * 4 * BLOCK
"""Keys and values of 2 heads of 8 float32 values at 16 positions."""


def model(layers: int = 4, window: int | None = None, sliding: tuple[bool, ...] = ()):
    return ModelConfig(
        architecture="LlamaForCausalLM",
        hidden_size=16,
        intermediate_size=32,
        num_layers=layers,
        num_heads=2,
        num_kv_heads=2,
        head_dim=8,
        vocab_size=64,
        max_position_embeddings=4096,
        rms_norm_eps=1e-6,
        rope_theta=10000.0,
        tie_word_embeddings=True,
        sliding_window=window,
        sliding_layers=sliding,
    )


def plan(config: ModelConfig, **options: object) -> CacheSize:
    fields = {"max_num_batched_tokens": 64, **options}
    engine = EngineConfig(
        engine_id="e0", epoch=1, model="m", model_name="m", clients=(), block_size=BLOCK, **fields
    )
    return plan_cache(engine, config, plain_block_bytes(engine, config, torch.float32), CPU)


def test_a_chosen_budget_is_spent_wholly_on_blocks():
    size = plan(model(), kv_cache_bytes=300 * 4 * LAYER_BLOCK_BYTES + 5)

    assert size.num_blocks == 300
    assert size.total_bytes == 300 * 4 * LAYER_BLOCK_BYTES
    assert (size.num_window_blocks, size.sliding_window) == (0, None)


def test_nothing_is_reserved_by_default_that_running_requests_could_not_use():
    size = plan(model(), max_num_seqs=2, max_model_len=256)

    assert size.num_blocks == 2 * 256 // BLOCK


def test_the_context_shrinks_to_what_one_request_alone_can_hold():
    size = plan(model(), kv_cache_bytes=10 * 4 * LAYER_BLOCK_BYTES)

    assert size.max_model_len == 10 * BLOCK


def test_an_asked_context_that_does_not_fit_is_refused_with_what_it_needs():
    with pytest.raises(ConfigError, match=f"{256 * 4 * LAYER_BLOCK_BYTES} bytes"):
        plan(model(), max_model_len=4096, kv_cache_bytes=100_000)


@pytest.mark.parametrize("length", [4097, 0, -1])
def test_a_context_that_the_model_does_not_have_is_refused(length):
    with pytest.raises(ConfigError, match="the model holds 1 to 4096"):
        plan(model(), max_model_len=length)


def test_a_budget_below_one_block_is_refused():
    with pytest.raises(ConfigError, match="one block needs"):
        plan(model(), kv_cache_bytes=100)


def test_sliding_layers_share_the_budget_and_keep_room_for_the_longest_request():
    mixed = model(window=128, sliding=(True, True, True, False))
    ring = (128 + 64) // BLOCK + 1
    budget = 256 * LAYER_BLOCK_BYTES + 40 * 3 * LAYER_BLOCK_BYTES

    size = plan(mixed, kv_cache_bytes=budget)

    assert size.max_model_len == 4096
    assert size.num_blocks >= 4096 // BLOCK
    assert size.num_window_blocks >= ring
    assert budget - 3 * LAYER_BLOCK_BYTES < size.total_bytes <= budget
    assert size.sliding_window == 128


def test_short_contexts_get_as_many_window_blocks_as_full_ones():
    mixed = model(window=128, sliding=(True, True, True, False))

    size = plan(mixed, kv_cache_bytes=400 * 4 * LAYER_BLOCK_BYTES, max_model_len=1024)

    assert size.num_blocks == size.num_window_blocks == 400


def test_a_model_of_sliding_layers_only_pays_nothing_for_full_blocks():
    size = plan(model(window=64), kv_cache_bytes=50 * 4 * LAYER_BLOCK_BYTES, max_num_seqs=3)

    assert size.max_model_len == 4096
    assert size.num_blocks == 3 * 4096 // BLOCK
    assert size.num_window_blocks == 50
    assert size.total_bytes == 50 * 4 * LAYER_BLOCK_BYTES


def test_each_layer_gets_the_blocks_of_its_kind():
    mixed = model(window=128, sliding=(True, False, True, True))
    size = plan(mixed, kv_cache_bytes=256 * LAYER_BLOCK_BYTES + 60 * 3 * LAYER_BLOCK_BYTES)

    caches = allocate_cache(size, mixed, torch.float32, CPU)

    wanted = [size.num_window_blocks, size.num_blocks, size.num_window_blocks]
    assert [cache.keys.shape[0] for cache in caches[:3]] == wanted
    assert all(cache.values.shape == cache.keys.shape for cache in caches)
