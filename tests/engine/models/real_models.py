"""Real checkpoints in the engine and in transformers: greedy texts and how they are compared."""

from collections.abc import Sequence
from pathlib import Path

import torch

from engine.checkpoint.checkpoint import Checkpoint, open_checkpoint
from engine.checkpoint.model_config import ModelConfig
from engine.core.batch import ScheduledRequest
from tests.engine.models.harness import make_runner, share

NEAR_TIE = 1e-3
"""Where transformers' two best logits are nearer, either may be right."""


def transformers_model(path: Path):
    """Build transformers' own model on the same weights, in float32."""
    from transformers.modeling_utils import no_init_weights

    checkpoint = open_checkpoint(path)
    with no_init_weights():
        model = _empty_model(checkpoint.config)
    state = {name: _weight(checkpoint, name) for name in checkpoint.tensors}
    missing = model.load_state_dict(state, strict=False, assign=True).missing_keys
    assert set(missing) <= {"lm_head.weight"}
    model.tie_weights()
    return model.eval()


def _empty_model(config: ModelConfig) -> torch.nn.Module:
    from transformers import (
        Gemma3ForCausalLM,
        Gemma3TextConfig,
        LlamaConfig,
        LlamaForCausalLM,
    )

    fields = {
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "vocab_size": config.vocab_size,
        "max_position_embeddings": config.max_position_embeddings,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope_theta,
        "tie_word_embeddings": config.tie_word_embeddings,
        "attn_implementation": "eager",
    }
    if config.architecture == "LlamaForCausalLM":
        return LlamaForCausalLM(LlamaConfig(**fields))
    kinds = ("full_attention", "sliding_attention")
    return Gemma3ForCausalLM(
        Gemma3TextConfig(
            **fields,
            rope_local_base_freq=config.local_rope_theta,
            sliding_window=config.sliding_window,
            query_pre_attn_scalar=round(config.query_scale**-2),
            layer_types=[kinds[config.is_sliding(layer)] for layer in range(config.num_layers)],
        )
    )


def _weight(checkpoint: Checkpoint, name: str) -> torch.Tensor:
    weight = torch.from_numpy(checkpoint.read(name)).float()
    # transformers keeps Gemma's norm weights without their one, GGUF with it
    is_whole = (
        checkpoint.config.architecture.startswith("Gemma") and not checkpoint.config.norm_offset
    )
    return weight - 1.0 if is_whole and "norm" in name else weight


def greedy(
    path: Path, prompts: Sequence[Sequence[int]], num_tokens: int, together: int = 5
) -> list[list[int]]:
    """Generate after every prompt, so many prompts in one batch, in float32."""
    longest = max(len(prompt) for prompt in prompts) + num_tokens
    runner = make_runner(path, dtype="float32", max_model_len=longest, kv_cache_bytes=1 << 30)
    blocks_each = -(-longest // 16)
    outputs: list[list[int]] = []
    for first in range(0, len(prompts), together):
        texts = [list(prompt) for prompt in prompts[first : first + together]]
        done = [0] * len(texts)
        for _ in range(num_tokens):
            batch = [_next(text, done[at], at, blocks_each) for at, text in enumerate(texts)]
            result = runner.execute(batch)
            assert not result.faults
            done = [len(text) for text in texts]
            for at, text in enumerate(texts):
                text.extend(result.token_ids[str(at)])
        outputs += [text[-num_tokens:] for text in texts]
    return outputs


def _next(text: Sequence[int], done: int, at: int, blocks_each: int) -> ScheduledRequest:
    blocks = range(blocks_each * at, blocks_each * (at + 1))
    return share(text[done:], done, blocks=blocks, request_id=str(at), window_blocks=blocks)


def assert_greedy(
    oracle,
    prompts: Sequence[Sequence[int]],
    outputs: Sequence[Sequence[int]],
    together: int = 1,
) -> None:
    """Each token must be transformers' best one after the same prefix, up to the first near tie."""
    for first in range(0, len(prompts), together):
        part = slice(first, first + together)
        texts = [
            torch.tensor([*prompt, *output])
            for prompt, output in zip(prompts[part], outputs[part], strict=True)
        ]
        # padding on the right: no token looks that way
        batch = torch.nn.utils.rnn.pad_sequence(texts, batch_first=True)
        start = min(len(prompt) for prompt in prompts[part]) - 1
        kept = torch.arange(start, batch.shape[1])
        with torch.inference_mode():
            logits = oracle(batch, logits_to_keep=kept, use_cache=False).logits
        for rows, prompt, output in zip(logits, prompts[part], outputs[part], strict=True):
            before = len(prompt) - 1 - start
            _assert_best(rows[before : before + len(output)], output)


def _assert_best(logits: torch.Tensor, output: Sequence[int]) -> None:
    best = logits.topk(2, dim=-1)
    for token, indices, values in zip(output, best.indices.tolist(), best.values, strict=True):
        if token != indices[0]:
            assert values[0] - values[1] < NEAR_TIE
            return
