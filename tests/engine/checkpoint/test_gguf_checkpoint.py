"""GGUF files: metadata, tokenizer and weights equal those of the model they were made from."""

import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind

from engine.checkpoint.checkpoint import CheckpointError, UnsupportedModelError, open_checkpoint
from engine.checkpoint.gguf_header import read_header
from tests.engine.checkpoint.gguf_files import stored_values, write_gguf

TEXTS = ["The quick brown fox", "  naïve café 你好 \U0001f600\n\n", "a1b22c333", "<|im_end|>x"]


@pytest.fixture(scope="module")
def f32_file(tiny_model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tiny_model_path, tmp_path_factory.mktemp("gguf") / "tiny.gguf", Kind.F32)


def test_the_configuration_is_that_of_the_directory(tiny_model_path, f32_file):
    original, converted = open_checkpoint(tiny_model_path), open_checkpoint(f32_file)

    for name in (
        "hidden_size",
        "num_heads",
        "num_kv_heads",
        "head_dim",
        "vocab_size",
        "rope_theta",
    ):
        assert getattr(converted.config, name) == getattr(original.config, name)
    assert converted.config.tie_word_embeddings
    assert converted.eos_token_ids == original.eos_token_ids
    assert converted.chat_template == original.chat_template
    assert (converted.bos_token, converted.eos_token) == ("<|im_start|>", "<|im_end|>")
    assert not converted.add_bos


def test_the_tokenizer_equals_the_original(tiny_model_path, f32_file):
    original, converted = (open_checkpoint(p).tokenizer() for p in (tiny_model_path, f32_file))

    for text in TEXTS:
        ids = original.encode(text).ids
        assert converted.encode(text).ids == ids
        assert converted.decode(ids, skip_special_tokens=False) == text


def test_unquantized_weights_come_back_bit_by_bit_in_hugging_face_order(tiny_model_path, f32_file):
    original, converted = open_checkpoint(tiny_model_path), open_checkpoint(f32_file)

    assert set(converted.tensors) == set(original.tensors)
    for name in original.tensors:
        assert np.array_equal(converted.read(name), original.read(name)), name


@pytest.mark.parametrize(
    ("kind", "error"), [(Kind.Q8_0, 0.002), (Kind.Q4_1, 0.03), (Kind.F16, 2e-4)]
)
def test_quantized_weights_come_back_within_their_error(tiny_model_path, tmp_path, kind, error):
    original = open_checkpoint(tiny_model_path)
    converted = open_checkpoint(write_gguf(tiny_model_path, tmp_path / "m.gguf", kind))

    assert converted.tensors["model.layers.0.mlp.up_proj.weight"].kind == kind.name
    for name in original.tensors:
        assert np.abs(converted.read(name) - original.read(name)).max() < error, name


def test_pieces_make_up_the_whole_tensor(smollm2_path):
    checkpoint = open_checkpoint(smollm2_path)
    name = "model.embed_tokens.weight"

    pieces = list(checkpoint.read_pieces(name))

    assert len(pieces) > 1
    starts = np.cumsum([0, *(len(values) for _, values in pieces)])
    assert [first for first, _ in pieces] == starts[:-1].tolist()
    assert starts[-1] == checkpoint.tensors[name].num_rows


def test_weights_of_the_default_model_equal_those_of_the_gguf_package(smollm2_path):
    checkpoint = open_checkpoint(smollm2_path)

    for ours, theirs in (
        ("model.layers.3.mlp.down_proj.weight", "blk.3.ffn_down.weight"),
        ("model.layers.0.input_layernorm.weight", "blk.0.attn_norm.weight"),
    ):
        assert np.array_equal(checkpoint.read(ours), stored_values(smollm2_path, theirs))


def test_the_tokenizer_of_the_default_model_gives_its_published_ids(smollm2_path):
    tokenizer = open_checkpoint(smollm2_path).tokenizer()
    prompt = (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
        "<|im_end|>\n<|im_start|>user\n"
    )

    assert tokenizer.encode(prompt).ids == [
        *(1, 9690, 198, 2683, 359, 253, 5356, 5646, 11173, 3365, 3511, 308, 34519, 28),
        *(7018, 411, 407, 19712, 8182, 2, 198, 1, 4093, 198),
    ]
    assert [len(tokenizer.encode(text).ids) for text in ("12345", "3.14")] == [5, 4]


def test_the_gateway_gets_the_tokenizer_without_torch_and_numpy(smollm2_path):
    script = (
        "import sys; from pathlib import Path\n"
        "from engine.checkpoint.checkpoint import open_checkpoint\n"
        f"checkpoint = open_checkpoint(Path({str(smollm2_path)!r}))\n"
        "checkpoint.tokenizer()\n"
        "assert not {'torch', 'numpy', 'gguf'} & set(sys.modules)\n"
    )

    subprocess.run([sys.executable, "-c", script], check=True, cwd=Path(__file__).parents[3])


@pytest.mark.parametrize(
    ("metadata", "reason"),
    [
        ({"architecture": "mamba"}, "supported: llama, qwen2, qwen3, gemma3, phi3"),
        ({"llama.expert_count": 8}, "mixture"),
        ({"llama.rope.scaling.type": "longrope"}, "default, linear, llama3"),
        ({"llama.rope.dimension_count": 8}, "part of the head"),
    ],
)
def test_models_that_cannot_run_are_refused_by_name(tiny_model_path, tmp_path, metadata, reason):
    file = write_gguf(tiny_model_path, tmp_path / "m.gguf", Kind.F32, **metadata)

    with pytest.raises(UnsupportedModelError, match=reason):
        open_checkpoint(file)


@pytest.mark.parametrize(
    ("metadata", "reason"),
    [
        ({"llama.embedding_length": None}, "lacks"),
        ({"llama.attention.head_count": 0}, "GGUF metadata"),
        ({"llama.attention.head_count_kv": 3}, "fit together"),
        ({"llama.block_count": math.inf}, "GGUF metadata"),
        ({"llama.rope.dimension_count": "many"}, "GGUF metadata"),
        ({"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 0.0}, "factor"),
    ],
)
def test_metadata_that_contradicts_itself_is_refused(tiny_model_path, tmp_path, metadata, reason):
    file = write_gguf(tiny_model_path, tmp_path / "m.gguf", Kind.F32, **metadata)

    with pytest.raises(CheckpointError, match=reason):
        open_checkpoint(file)


def test_a_vocabulary_with_too_many_types_is_refused(tiny_model_path, tmp_path):
    file = write_gguf(tiny_model_path, tmp_path / "m.gguf", Kind.F32, token_types=[3] * 1000)

    with pytest.raises(CheckpointError, match="one type for each"):
        open_checkpoint(file).tokenizer()


def read_everything(path: Path) -> None:
    checkpoint = open_checkpoint(path)
    checkpoint.tokenizer()
    for name in checkpoint.tensors:
        checkpoint.read(name)


def test_a_file_cut_anywhere_is_an_error_of_the_checkpoint(f32_file, tmp_path):
    content = f32_file.read_bytes()
    cut = tmp_path / "cut.gguf"
    for length in [0, 3, 4, 7, 20, *range(24, len(content) - 1, len(content) // 60)]:
        cut.write_bytes(content[:length])
        with pytest.raises(CheckpointError):
            read_everything(cut)


def test_flipped_header_bytes_never_raise_anything_else(f32_file, tmp_path):
    content = f32_file.read_bytes()
    header_bytes = read_header(f32_file).data_offset
    broken = tmp_path / "broken.gguf"
    rng = np.random.default_rng(0)
    for position in rng.integers(0, header_bytes, 400):
        changed = bytearray(content)
        changed[position] ^= int(rng.integers(1, 256))
        broken.write_bytes(changed)
        try:
            read_everything(broken)
        except CheckpointError:
            continue
