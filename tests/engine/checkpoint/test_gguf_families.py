"""GGUF files of every family: names, shapes, values and constants are those of transformers."""

import math
from pathlib import Path

import msgspec
import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES
from gguf import GGMLQuantizationType as Kind
from gguf.quants import dequantize, quantize

from engine.checkpoint import tensors
from engine.checkpoint.checkpoint import open_checkpoint
from engine.checkpoint.errors import CheckpointError, UnsupportedModelError
from engine.checkpoint.gguf_header import read_header
from engine.checkpoint.model_config import RopeScaling, config_from_hugging_face
from engine.checkpoint.tensors import TensorEntry, read_pieces, read_tensor
from tests.engine.checkpoint.gguf_families import FAMILIES, GgufFamily, write_family
from tests.engine.checkpoint.gguf_files import stored_values

BY_NAME = {family.name: family for family in FAMILIES}
LLAMA, QWEN3, GEMMA3, PHI3 = (BY_NAME[name] for name in ("Llama", "Qwen3", "Gemma3Text", "Phi3"))


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_weights_and_configuration_are_those_of_the_original(family: GgufFamily, tmp_path: Path):
    weights = write_family(family, tmp_path / "m.gguf")
    checkpoint = open_checkpoint(tmp_path / "m.gguf")

    assert set(checkpoint.tensors) == set(weights)
    offset = 1.0 if family is GEMMA3 else 0.0  # llama.cpp stores Gemma's norms with their one
    for name, weight in weights.items():
        expected = weight + offset if name.endswith("norm.weight") else weight
        assert np.array_equal(checkpoint.read(name), expected.astype(np.float32)), name
    original = config_from_hugging_face(family.model().config.to_dict())
    assert checkpoint.config.rms_norm_eps == pytest.approx(original.rms_norm_eps)  # a float32
    expected_config = msgspec.structs.replace(
        original, rms_norm_eps=checkpoint.config.rms_norm_eps, dtype="float32", norm_offset=0.0
    )
    assert checkpoint.config == expected_config


@pytest.mark.parametrize(
    "kind",
    [Kind.F16, Kind.BF16, Kind.Q8_0, Kind.Q4_0, Kind.Q4_1, Kind.Q5_0, Kind.Q5_1],
    ids=lambda kind: kind.name,
)
def test_every_kind_is_read_as_the_gguf_package_reads_it(kind: Kind, tmp_path: Path):
    weights = write_family(QWEN3, tmp_path / "m.gguf", kind)
    checkpoint = open_checkpoint(tmp_path / "m.gguf")

    for name, weight in weights.items():
        values = checkpoint.read(name)
        if weight.ndim == 1:
            assert np.array_equal(values, weight)
        elif kind is Kind.BF16:
            bits = quantize(weight, kind).view(np.uint16).reshape(weight.shape)
            assert np.array_equal(values, bits)
        else:
            assert np.array_equal(values, dequantize(quantize(weight, kind), kind))
    dtypes = {Kind.F16: "float16", Kind.BF16: "bfloat16"}
    assert checkpoint.config.dtype == dtypes.get(kind)


def test_interleaved_heads_of_quantized_files_are_put_back(tmp_path: Path):
    weights = write_family(LLAMA, tmp_path / "m.gguf", Kind.Q8_0)
    checkpoint = open_checkpoint(tmp_path / "m.gguf")

    for name in ("q_proj", "k_proj"):
        full = f"model.layers.1.self_attn.{name}.weight"
        expected = dequantize(quantize(weights[full], Kind.Q8_0), Kind.Q8_0)
        assert np.array_equal(checkpoint.read(full), expected)


@pytest.mark.parametrize("heads", [None, 4, 8])
def test_pieces_are_whole_rows_and_whole_heads(
    heads: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    values = np.random.default_rng(0).standard_normal((64, 32)).astype(np.float32)
    (tmp_path / "t").write_bytes(values.tobytes())
    entry = TensorEntry(
        name="t",
        shape=(64, 32),
        kind="F32",
        file=tmp_path / "t",
        offset=0,
        num_bytes=values.nbytes,
        interleaved_heads=heads,
    )
    whole = read_tensor(entry)
    monkeypatch.setattr(tensors, "PIECE_BYTES", 7 * 128)

    pieces = list(read_pieces(entry))

    assert len(pieces) > 3
    assert np.array_equal(np.concatenate([piece for _, piece in pieces]), whole)
    assert [first for first, _ in pieces] == np.cumsum(
        [0, *(len(piece) for _, piece in pieces[:-1])]
    ).tolist()


@pytest.mark.parametrize("kind", [Kind.Q2_K, Kind.Q3_K, Kind.Q4_K, Kind.Q5_K, Kind.Q6_K])
def test_super_blocks_are_read_in_pieces(
    kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    _, block_bytes = GGML_QUANT_SIZES[kind]
    stored = np.random.default_rng(0).integers(0, 100, (48, 2 * block_bytes), np.uint8)
    (tmp_path / "t").write_bytes(stored.tobytes())
    entry = TensorEntry(
        name="t",
        shape=(48, 512),
        kind=kind.name,
        file=tmp_path / "t",
        offset=0,
        num_bytes=stored.nbytes,
    )
    monkeypatch.setattr(tensors, "PIECE_BYTES", 5 * 2 * block_bytes)

    values = np.concatenate([piece for _, piece in read_pieces(entry)])

    assert np.array_equal(values, dequantize(stored, kind), equal_nan=True)


def test_gemma3_270m_is_read_as_the_gguf_package_reads_it(gemma3_path: Path):
    checkpoint = open_checkpoint(gemma3_path)

    assert {entry.kind for entry in checkpoint.tensors.values()} == {
        *("F32", "Q5_0", "Q8_0", "Q4_K", "Q6_K")
    }
    for ours, theirs in (
        ("self_attn.o_proj.weight", "attn_output.weight"),
        ("self_attn.q_proj.weight", "attn_q.weight"),
        ("mlp.down_proj.weight", "ffn_down.weight"),
        ("self_attn.v_proj.weight", "attn_v.weight"),
        ("self_attn.k_norm.weight", "attn_k_norm.weight"),
        ("pre_feedforward_layernorm.weight", "ffn_norm.weight"),
        ("post_feedforward_layernorm.weight", "post_ffw_norm.weight"),
        ("post_attention_layernorm.weight", "post_attention_norm.weight"),
    ):
        expected = stored_values(gemma3_path, f"blk.0.{theirs}")
        assert np.array_equal(checkpoint.read(f"model.layers.0.{ours}"), expected)


def test_gemma3_270m_has_the_configuration_of_its_card(gemma3_path: Path):
    config = open_checkpoint(gemma3_path).config

    assert config.architecture == "Gemma3ForCausalLM"
    assert (config.num_layers, config.hidden_size, config.vocab_size) == (18, 640, 262_144)
    assert (config.num_heads, config.num_kv_heads, config.head_dim) == (4, 1, 256)
    assert config.sliding_window == 512
    assert [i for i in range(18) if not config.is_sliding(i)] == [5, 11, 17]
    assert (config.rope_theta, config.local_rope_theta) == (1e6, 1e4)
    assert config.query_scale == 1 / 16
    assert config.embedding_scale == pytest.approx(math.sqrt(640))
    assert (config.norm_offset, config.activation, config.qk_norm) == (0.0, "gelu_tanh", True)
    assert config.tie_word_embeddings
    assert config.dtype is None


def test_what_a_file_does_not_say_of_its_tokens_is_as_sentencepiece_has_it(tmp_path: Path):
    write_family(GEMMA3, tmp_path / "m.gguf")
    checkpoint = open_checkpoint(tmp_path / "m.gguf")

    assert checkpoint.add_bos
    assert (checkpoint.bos_token, checkpoint.eos_token) == ("<s>", "</s>")
    assert checkpoint.eos_token_ids == (2, checkpoint.tokenizer().token_to_id("<end_of_turn>"))


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_flipped_header_bytes_never_raise_anything_else(family: GgufFamily, tmp_path: Path):
    write_family(family, tmp_path / "m.gguf", **{"rope.scaling.factor": 2.0})
    content = (tmp_path / "m.gguf").read_bytes()
    header_bytes = read_header(tmp_path / "m.gguf").data_offset
    broken = tmp_path / "broken.gguf"
    rng = np.random.default_rng(0)
    for position in rng.integers(0, header_bytes, 150):
        changed = bytearray(content)
        changed[position] ^= int(rng.integers(1, 256))
        broken.write_bytes(changed)
        try:
            checkpoint = open_checkpoint(broken)
            checkpoint.tokenizer()
            for name in checkpoint.tensors:
                checkpoint.read(name)
        except CheckpointError:
            continue


def test_a_vocabulary_larger_than_the_embedding_is_refused(tmp_path: Path):
    write_family(QWEN3, tmp_path / "m.gguf")
    checkpoint = open_checkpoint(tmp_path / "m.gguf")
    checkpoint.config = msgspec.structs.replace(checkpoint.config, vocab_size=319)

    with pytest.raises(CheckpointError, match="320 tokens, but embeddings of only 319"):
        checkpoint.tokenizer()


def test_a_llama_file_with_a_window_is_a_mistral(tmp_path: Path):
    write_family(LLAMA, tmp_path / "m.gguf", **{"attention.sliding_window": 128})
    config = open_checkpoint(tmp_path / "m.gguf").config

    assert (config.architecture, config.sliding_window) == ("MistralForCausalLM", 128)


@pytest.mark.parametrize(
    ("family", "metadata", "expected"),
    [
        (LLAMA, {"rope_freqs.weight": [1.0] * 8 + [8.0] * 8},
         RopeScaling(kind="factors", long_factors=(1.0,) * 8 + (8.0,) * 8)),
        (GEMMA3, {"rope.scaling.type": "linear", "rope.scaling.factor": 8.0},
         RopeScaling(kind="linear", factor=8.0)),
        (QWEN3, {"rope.scaling.factor": 2.0}, RopeScaling(kind="linear", factor=2.0)),
        (QWEN3, {"rope.scaling.type": "none"}, RopeScaling()),
        (QWEN3, {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0,
                 "rope.scaling.original_context_length": 256},
         RopeScaling(kind="yarn", factor=4.0, original_max_position_embeddings=256)),
        (QWEN3, {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0,
                 "rope.scaling.attn_factor": 2.0, "rope.scaling.yarn_beta_fast": 16.0,
                 "rope.scaling.yarn_beta_slow": 2.0},
         RopeScaling(kind="yarn", factor=4.0, original_max_position_embeddings=1024,
                     beta_fast=16.0, beta_slow=2.0,
                     attention_factor=2.0 * (1 + 0.1 * math.log(4.0)))),
        (PHI3, {"rope_factors_long.weight": [2.0] * 8, "rope_factors_short.weight": [1.0] * 8,
                "rope.scaling.original_context_length": 256, "rope.scaling.attn_factor": 1.25},
         RopeScaling(kind="longrope", factor=4.0, original_max_position_embeddings=256,
                     attention_factor=1.25, long_factors=(2.0,) * 8, short_factors=(1.0,) * 8)),
    ],
)  # fmt: skip
def test_rope_scalings_are_read(family: GgufFamily, metadata, expected, tmp_path: Path):
    write_family(family, tmp_path / "m.gguf", **metadata)

    assert open_checkpoint(tmp_path / "m.gguf").config.rope_scaling == expected


def test_the_largest_gemma3_scales_its_queries_by_the_width_of_the_model(tmp_path: Path):
    fields = GEMMA3.fields | {"num_hidden_layers": 62, "head_dim": 16, "hidden_size": 128}
    write_family(GgufFamily("Gemma3Text", GEMMA3.architecture, fields), tmp_path / "m.gguf")

    assert open_checkpoint(tmp_path / "m.gguf").config.query_scale == pytest.approx(64**-0.5)


@pytest.mark.parametrize(
    ("metadata", "error", "reason"),
    [
        ({"rope.scaling.type": "longrope"}, UnsupportedModelError, "yarn, longrope"),
        ({"attention.value_length": 8}, UnsupportedModelError, "another size than keys"),
        ({"attention.head_count_kv": [1, 2]}, UnsupportedModelError, "differs by layer"),
        ({"rope.dimension_count": 16}, UnsupportedModelError, "supported in: Phi3"),
        ({"rope_freqs.weight": [1.0] * 3}, CheckpointError, "3 factors"),
        ({"rope_freqs.weight": [0.0] * 16}, CheckpointError, "out of range"),
        ({"rope_freqs.weight": [[1.0] * 16] * 2}, CheckpointError, "no vector"),
    ],
)
def test_variants_that_cannot_run_are_refused(metadata, error, reason, tmp_path: Path):
    write_family(QWEN3, tmp_path / "m.gguf", **metadata)

    with pytest.raises(error, match=reason):
        open_checkpoint(tmp_path / "m.gguf")


def test_no_list_is_made_of_four_billion_layers(tmp_path: Path):
    write_family(GEMMA3, tmp_path / "m.gguf", block_count=4_000_000_000)

    with pytest.raises(CheckpointError, match="number of layers"):
        open_checkpoint(tmp_path / "m.gguf")
