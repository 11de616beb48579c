"""A tiny random llama in Hugging Face layout with a real byte-level tokenizer: loads at once."""

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CORPUS = [
    "The capital of France is Paris, and the quick brown fox jumps over the lazy dog.",
    "An engine makes tokens; a gateway makes text; a supervisor watches both, day and night.",
    "0123456789 !?.,:;()[]{}<>|@#$%&*+-=/ \n\t na\u00efve caf\u00e9 \u4f60\u597d \U0001f600",
] * 4


def make_tokenizer(vocab_size: int = 512) -> Tokenizer:
    """Train a byte-level BPE tokenizer on a few sentences."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def make_tiny_model(directory: Path, *, seed: int = 0, layers: int = 2, max_len: int = 512) -> Path:
    """Write a whole model directory; return its path."""
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer = make_tokenizer()
    tokenizer.save(str(directory / "tokenizer.json"))
    hidden, heads, kv_heads, head_dim, inner = 64, 4, 2, 16, 128
    vocab = tokenizer.get_vocab_size()
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "vocab_size": vocab,
        "max_position_embeddings": max_len,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "torch_dtype": "bfloat16",
    }
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "tokenizer_config.json").write_text(
        json.dumps(
            {"chat_template": CHATML, "eos_token": "<|im_end|>", "bos_token": "<|im_start|>"}
        )
    )
    rng = np.random.default_rng(seed)

    def weight(*shape: int) -> np.ndarray:
        return (rng.standard_normal(shape) * 0.08).astype(np.float32)

    tensors = {
        "model.embed_tokens.weight": weight(vocab, hidden),
        "model.norm.weight": np.ones(hidden, np.float32),
    }
    for layer in range(layers):
        at = f"model.layers.{layer}."
        tensors |= {
            at + "input_layernorm.weight": np.ones(hidden, np.float32),
            at + "post_attention_layernorm.weight": np.ones(hidden, np.float32),
            at + "self_attn.q_proj.weight": weight(heads * head_dim, hidden),
            at + "self_attn.k_proj.weight": weight(kv_heads * head_dim, hidden),
            at + "self_attn.v_proj.weight": weight(kv_heads * head_dim, hidden),
            at + "self_attn.o_proj.weight": weight(hidden, heads * head_dim),
            at + "mlp.gate_proj.weight": weight(inner, hidden),
            at + "mlp.up_proj.weight": weight(inner, hidden),
            at + "mlp.down_proj.weight": weight(hidden, inner),
        }
    save_file(tensors, str(directory / "model.safetensors"))
    return directory
