"""Hugging Face directories: JSON in all its variants, safetensors whole and in shards."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from engine.checkpoint.checkpoint import CheckpointError, UnsupportedModelError, open_checkpoint
from engine.checkpoint.model_config import config_from_hugging_face
from tests.engine.checkpoint.gguf_families import FAMILIES, weights_of
from tests.tiny_model import CHATML, make_tiny_model

NESTED = "nested deeper than Python's stack"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return make_tiny_model(tmp_path / "tiny")


def edit(file: Path, **fields: object) -> None:
    content = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps(content | fields))


def test_a_directory_gives_everything_the_gateway_and_the_engine_need(directory):
    checkpoint = open_checkpoint(directory)

    assert checkpoint.architecture == "LlamaForCausalLM"
    assert checkpoint.config.head_dim == 16
    assert checkpoint.config.dtype == "bfloat16"
    assert checkpoint.eos_token_ids == (2,)
    assert checkpoint.bos_token_id == 1
    assert checkpoint.chat_template == CHATML
    assert (checkpoint.bos_token, checkpoint.eos_token) == ("<|im_start|>", "<|im_end|>")
    assert checkpoint.tokenizer().encode("<|im_end|>").ids == [2]


def test_weights_are_those_of_the_safetensors_package(directory):
    checkpoint = open_checkpoint(directory)

    for name, values in load_file(directory / "model.safetensors").items():
        assert np.array_equal(checkpoint.read(name), values)


def test_shards_are_found_through_the_index(directory):
    whole = load_file(directory / "model.safetensors")
    names = sorted(whole)
    files = {"a.safetensors": names[:5], "b.safetensors": names[5:]}
    for file, part in files.items():
        save_file({name: whole[name] for name in part}, directory / file)
    (directory / "model.safetensors").unlink()
    weight_map = {name: file for file, part in files.items() for name in part}
    edit(directory / "model.safetensors.index.json", weight_map=weight_map)

    checkpoint = open_checkpoint(directory)

    assert sorted(checkpoint.tensors) == names
    assert all(np.array_equal(checkpoint.read(name), whole[name]) for name in names)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_shards_of_every_family_hold_what_transformers_saved(family, tmp_path):
    model = family.model()
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    weights = weights_of(model)

    checkpoint = open_checkpoint(tmp_path)

    assert len(list(tmp_path.glob("*.safetensors"))) > 3
    assert checkpoint.config == config_from_hugging_face(model.config.to_dict())
    assert checkpoint.config.dtype == "float32"
    assert set(checkpoint.tensors) == set(weights)
    assert all(np.array_equal(checkpoint.read(name), weights[name]) for name in weights)


@pytest.mark.parametrize("prefix", ["language_model.model.", "model.language_model."])
def test_the_text_model_of_a_multimodal_gemma3_is_taken_out(tmp_path, prefix):
    model = next(family for family in FAMILIES if family.name == "Gemma3Text").model()
    weights = weights_of(model)
    tower = {"vision_tower.x.weight": np.ones(3, np.float32)}
    renamed = {prefix + name.removeprefix("model."): each for name, each in weights.items()}
    save_file(renamed | tower, tmp_path / "model.safetensors")
    fields = {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "text_config": model.config.to_dict() | {"eos_token_id": [1, 106]},
        "bos_token_id": 2,
    }
    edit(tmp_path / "config.json", **fields)

    checkpoint = open_checkpoint(tmp_path)

    assert checkpoint.architecture == "Gemma3ForCausalLM"
    assert set(checkpoint.tensors) == set(weights)
    assert all(np.array_equal(checkpoint.read(name), weights[name]) for name in weights)
    assert (checkpoint.eos_token_ids, checkpoint.bos_token_id) == ((1, 106), 2)

    save_file(tower, tmp_path / "model.safetensors")
    with pytest.raises(UnsupportedModelError, match=r"no text model.*language_model\.model"):
        _ = open_checkpoint(tmp_path).tensors


def test_a_tokenizer_of_sentencepiece_alone_says_how_to_convert_it(directory):
    (directory / "tokenizer.json").rename(directory / "tokenizer.model")

    with pytest.raises(CheckpointError, match="AutoTokenizer"):
        open_checkpoint(directory).tokenizer()


def test_bfloat16_comes_as_raw_bits(directory):
    whole = load_file(directory / "model.safetensors")
    name, values = "model.norm.weight", whole["model.norm.weight"]
    header = {name: {"dtype": "BF16", "shape": [64], "data_offsets": [0, 128]}}
    encoded = json.dumps(header).encode()
    bits = (values.view(np.uint32) >> 16).astype(np.uint16)
    (directory / "model.safetensors").write_bytes(
        len(encoded).to_bytes(8, "little") + encoded + bits.tobytes()
    )

    assert np.array_equal(open_checkpoint(directory).read(name), bits)


def test_generation_config_wins_and_may_name_several_end_tokens(directory):
    edit(directory / "generation_config.json", eos_token_id=[2, 0], bos_token_id=None)

    checkpoint = open_checkpoint(directory)

    assert checkpoint.eos_token_ids == (2, 0)
    assert checkpoint.bos_token_id == 1


def test_a_template_file_wins_and_lists_of_templates_are_understood(directory):
    edit(
        directory / "tokenizer_config.json",
        chat_template=[{"name": "default", "template": "D"}, {"name": "tool", "template": "T"}],
        eos_token={"content": "<|im_end|>", "special": True},
    )
    assert open_checkpoint(directory).chat_template == "D"
    assert open_checkpoint(directory).eos_token == "<|im_end|>"

    edit(directory / "tokenizer_config.json", chat_template=None)
    edit(directory / "chat_template.json", chat_template="JSON")
    assert open_checkpoint(directory).chat_template == "JSON"

    (directory / "chat_template.jinja").write_text("FILE")
    assert open_checkpoint(directory).chat_template == "FILE"


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"architectures": ["MambaForCausalLM"]}, "supported: LlamaForCausalLM"),
        ({"hidden_act": "gelu"}, "supported: silu"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2}}, "default, linear, llama3"),
        ({"quantization_config": {"bits": 4}}, "quantized"),
    ],
)
def test_models_that_cannot_run_are_refused_by_name(directory, fields, reason):
    edit(directory / "config.json", **fields)

    with pytest.raises(UnsupportedModelError, match=reason):
        open_checkpoint(directory)


@pytest.mark.parametrize(
    "fields",
    [
        {"architectures": [], "model_type": None},
        {"hidden_size": "many"},
        {"hidden_size": None},
        {"num_attention_heads": 0},
        {"num_hidden_layers": -1},
        {"vocab_size": 1 << 40},
        {"num_key_value_heads": 3},
        {"head_dim": 15},
        {"rope_scaling": "yes"},
        {"rope_scaling": {"rope_type": "linear"}},
        {"rope_scaling": {"rope_type": "linear", "factor": 0}},
        {"rope_theta": "nan"},
        {"rms_norm_eps": -1},
    ],
)
def test_a_configuration_that_makes_no_sense_is_refused(directory, fields):
    edit(directory / "config.json", **fields)

    with pytest.raises(CheckpointError):
        open_checkpoint(directory)


@pytest.mark.parametrize("templates", [["x"], [[]], [{"name": []}], [{"template": "x"}]])
def test_a_list_without_a_default_template_gives_none(directory, templates):
    edit(directory / "tokenizer_config.json", chat_template=templates)

    assert open_checkpoint(directory).chat_template is None


@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir, lambda file: file.symlink_to("/dev/zero")])
@pytest.mark.parametrize(
    "name", ["config.json", "generation_config.json", "tokenizer.json", "chat_template.jinja",
             "model.safetensors", "model.safetensors.index.json"]
)  # fmt: skip
def test_what_is_no_file_is_refused_and_never_waited_for(directory, name, make):
    (directory / name).unlink(missing_ok=True)
    make(directory / name)

    with pytest.raises(CheckpointError, match=name):
        read_all(directory)


def test_a_pipe_named_like_a_gguf_file_is_refused(tmp_path):
    os.mkfifo(tmp_path / "model.gguf")

    with pytest.raises(CheckpointError, match="no regular file"):
        open_checkpoint(tmp_path / "model.gguf")


def read_all(directory: Path) -> None:
    checkpoint = open_checkpoint(directory)
    checkpoint.tokenizer()
    for name in checkpoint.tensors:
        checkpoint.read(name)


@pytest.mark.parametrize("content", ["", "{", "[]", "null", '{"a": 1}', "[" * 100_000])
@pytest.mark.parametrize("name", ["config.json", "tokenizer.json"])
def test_json_that_is_none_is_refused(directory, name, content):
    (directory / name).write_text(content)

    with pytest.raises(CheckpointError):
        open_checkpoint(directory).tokenizer()


@pytest.mark.parametrize("length", [0, 7, 8, 100, 5000, -1])
def test_truncated_weights_are_refused(directory, length):
    file = directory / "model.safetensors"
    file.write_bytes(file.read_bytes()[:length])

    with pytest.raises(CheckpointError):
        _ = open_checkpoint(directory).tensors


@pytest.mark.parametrize(
    "entry",
    [
        {"dtype": NESTED, "shape": [2], "data_offsets": [0, 8]},
        {"dtype": "F32", "shape": [64], "data_offsets": [0, 8]},
        {"dtype": "F32", "shape": [-2], "data_offsets": [0, 8]},
        {"dtype": "F32", "shape": [2], "data_offsets": [-8, 0]},
        {"dtype": "F32", "shape": [2], "data_offsets": [1 << 40, (1 << 40) + 8]},
        {"dtype": "I4", "shape": [2], "data_offsets": [0, 8]},
        {"shape": [2]},
    ],
)
def test_a_tensor_directory_that_makes_no_sense_is_refused(directory, entry):
    text = json.dumps({"model.norm.weight": entry}).replace(json.dumps(NESTED), "[" * 100_000)
    header = text.encode()
    content = len(header).to_bytes(8, "little") + header + bytes(8)
    (directory / "model.safetensors").write_bytes(content)

    with pytest.raises(CheckpointError):
        _ = open_checkpoint(directory).tensors


def test_an_empty_or_missing_path_is_refused(tmp_path):
    for path in (tmp_path, tmp_path / "nothing", tmp_path / "nothing.gguf"):
        with pytest.raises(CheckpointError):
            open_checkpoint(path)
    (tmp_path / "model.bin").write_bytes(b"x")
    with pytest.raises(CheckpointError, match="neither"):
        open_checkpoint(tmp_path / "model.bin")


def test_an_unknown_tensor_is_named(directory):
    with pytest.raises(CheckpointError, match=r"no tensor model\.x"):
        open_checkpoint(directory).read("model.x")
