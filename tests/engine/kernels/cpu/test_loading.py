"""A loaded model's weights are those of its checkpoint, packed, in little memory."""

import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind

from engine.checkpoint.checkpoint import Checkpoint, CheckpointError, open_checkpoint
from engine.kernels.cpu.loading import CpuWeightLoader
from engine.kernels.cpu.packing import packed_bias
from engine.kernels.cpu.quantization import choose_quantization
from engine.kernels.cpu.weights import GATED_ROWS, Format, PackedWeight
from engine.models.parameters import Parameter, Weights
from engine.models.registry import family_of
from tests.engine.checkpoint.gguf_families import FAMILIES, write_family
from tests.engine.checkpoint.gguf_files import write_gguf
from tests.engine.kernels.cpu.unpacked import as_float32, weight_values

TOLERANCE = {
    Format.BF16: 2.0**-8,
    Format.W4_G32: 0.12,
    Format.I8_G32: 0.006,
    Format.I8_G64: 0.006,
}
"""Largest error, as a part of the largest value."""


def parameters_of(checkpoint: Checkpoint) -> list[Parameter]:
    return family_of(checkpoint.config).parameters(checkpoint.config)


def load(path: Path, asked="auto", num_threads: int = 2) -> tuple[Weights, CpuWeightLoader]:
    checkpoint = open_checkpoint(path)
    choice = choose_quantization(asked, checkpoint.tensors.values())
    loader = CpuWeightLoader(checkpoint, choice, None, num_threads, lambda _done, _total: None)
    return loader.load(parameters_of(checkpoint)), loader


def stacked(checkpoint: Checkpoint, parameter: Parameter) -> np.ndarray:
    return np.concatenate([as_float32(checkpoint.read(name)) for name in parameter.sources])


def padded_halves(values: np.ndarray) -> np.ndarray:
    """Pad gate and up each, as they are packed."""
    halves = values.reshape(2, -1, values.shape[1])
    room = -halves.shape[1] % GATED_ROWS
    return np.pad(halves, ((0, 0), (0, room), (0, 0))).reshape(-1, values.shape[1])


def assert_weights(path: Path, weights: Weights) -> None:
    """Compare every weight with what the checkpoint holds."""
    checkpoint = open_checkpoint(path)
    for parameter in parameters_of(checkpoint):
        wanted = stacked(checkpoint, parameter)
        if len(parameter.shape) == 1:
            assert np.array_equal(weights.tensors[parameter.name].numpy(), wanted)
            continue
        weight: PackedWeight = weights.linears[parameter.name].content
        assert weight.in_features == wanted.shape[1]
        if parameter.is_gate_up:
            assert weight.columns % GATED_ROWS == 0
            wanted = padded_halves(wanted)
        found = weight_values(weight)
        assert found.shape == wanted.shape
        tolerance = max(TOLERANCE[segment.format] for segment in weight.segments)
        assert np.abs(found - wanted).max() <= tolerance * np.abs(wanted).max()


@pytest.mark.parametrize("asked", ["auto", "none", "int8", "w4"])
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_every_family_is_packed_with_its_own_names(family, asked: str, tmp_path: Path):
    write_family(family, tmp_path / "m.gguf", Kind.Q8_0)

    weights, _ = load(tmp_path / "m.gguf", asked)

    assert_weights(tmp_path / "m.gguf", weights)


@pytest.mark.parametrize("kind", [Kind.F32, Kind.F16, Kind.BF16, Kind.Q4_0, Kind.Q4_1, Kind.Q5_1])
def test_every_kind_is_loaded(kind: Kind, tiny_model_path: Path, tmp_path: Path):
    path = write_gguf(tiny_model_path, tmp_path / "m.gguf", kind)

    weights, loader = load(path)

    assert_weights(path, weights)
    is_exact = kind in (Kind.BF16, Kind.Q4_0, Kind.Q4_1)
    assert (loader.conversion is None) == is_exact
    assert ("converted weights are" in loader.quantization_reason) != is_exact


def test_a_hugging_face_directory_is_loaded_exactly(tiny_model_path: Path):
    weights, loader = load(tiny_model_path, "none")

    assert_weights(tiny_model_path, weights)
    assert loader.cache_state == "off"


def test_a_tied_embedding_is_packed_once(tiny_model_path: Path):
    weights, _ = load(tiny_model_path)

    assert weights.linears["head"] is weights.linears["embedding"]
    apart, _ = load(tiny_model_path, "int8")
    assert weights.num_bytes > apart.num_bytes


def test_products_of_two_kinds_have_two_segments(tmp_path: Path):
    path = mixed_file(tmp_path / "m.gguf")

    weights, loader = load(path)

    assert_weights(path, weights)
    qkv: PackedWeight = weights.linears["layers.0.qkv"].content
    assert [(s.format, s.rows, s.first_column) for s in qkv.segments] == [
        (Format.W4_G32, 96, 0),
        (Format.I8_G32, 32, 96),
    ]
    gate_up: PackedWeight = weights.linears["layers.0.gate_up"].content
    assert [segment.format for segment in gate_up.segments] == [Format.I8_G32]
    assert loader.conversion is not None
    assert loader.conversion.worst_name.endswith(".gate_up")


def mixed_file(path: Path) -> Path:
    """Write a llama whose values and up projection have another kind than the rest."""
    write_family(FAMILIES[0], path, Kind.Q4_1)
    reader = gguf.GGUFReader(str(path))
    writer = gguf.GGUFWriter(str(path.with_suffix(".mixed")), "llama")
    for field in reader.fields.values():
        if not field.name.startswith("GGUF.") and field.name != "general.architecture":
            kind, *inner = field.types
            writer.add_key_value(
                field.name, field.contents(), kind, sub_type=inner[-1] if inner else None
            )
    for tensor in reader.tensors:
        data, kind = np.array(tensor.data), tensor.tensor_type
        if tensor.name.endswith(("attn_v.weight", "ffn_up.weight")):
            kind = Kind.Q8_0
            data = gguf.quants.quantize(gguf.quants.dequantize(data, tensor.tensor_type), kind)
        writer.add_tensor(tensor.name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    path.with_suffix(".mixed").replace(path)
    return path


def test_biases_fit_their_weights(tmp_path: Path):
    family = next(each for each in FAMILIES if each.name == "Qwen2")
    write_family(family, tmp_path / "m.gguf", Kind.Q8_0)

    weights, _ = load(tmp_path / "m.gguf")

    bias = weights.tensors["layers.0.qkv.bias"]
    (found,) = packed_bias(bias, weights.linears["layers.0.qkv"].content)
    assert found[: len(bias)].equal(bias)


@pytest.mark.parametrize("asked", ["auto", "w4"])
def test_threads_change_nothing(asked: str, tiny_model_path: Path):
    one, _ = load(tiny_model_path, asked, num_threads=1)
    four, _ = load(tiny_model_path, asked, num_threads=4)

    for name, weight in one.linears.items():
        for ours, theirs in zip(
            weight.content.segments, four.linears[name].content.segments, strict=True
        ):
            assert ours.panels.equal(theirs.panels)
            assert ours.panels.data_ptr() % 64 == 0


def test_progress_ends_with_everything(tiny_model_path: Path):
    seen: list[tuple[int, int]] = []
    checkpoint = open_checkpoint(tiny_model_path)
    choice = choose_quantization("auto", checkpoint.tensors.values())
    loader = CpuWeightLoader(checkpoint, choice, None, 1, lambda *each: seen.append(each))

    loader.load(parameters_of(checkpoint))

    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert seen[-1][0] == seen[-1][1] == sum(e.num_bytes for e in checkpoint.tensors.values())


def test_a_file_that_ends_early_is_an_error_and_not_a_crash(tiny_model_path: Path, tmp_path: Path):
    path = write_gguf(tiny_model_path, tmp_path / "m.gguf", Kind.Q4_0)
    checkpoint = open_checkpoint(path)
    choice = choose_quantization("auto", checkpoint.tensors.values())
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2)
    loader = CpuWeightLoader(checkpoint, choice, None, 2, lambda _done, _total: None)

    with pytest.raises(CheckpointError, match=r"m\.gguf ends inside tensor"):
        loader.load(parameters_of(checkpoint))


def test_weights_that_are_no_numbers_are_named_and_do_not_hide_the_loss_of_others(
    tiny_model_path: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    path = write_gguf(tiny_model_path, tmp_path / "m.gguf", Kind.F32)
    entry = open_checkpoint(path).tensors["model.layers.1.mlp.down_proj.weight"]
    with path.open("r+b") as file:
        file.seek(entry.offset)
        file.write(np.float32(np.nan).tobytes())

    _, loader = load(path, "int8")

    assert "no numbers in layers.1.down" in caplog.text
    assert loader.conversion is not None
    assert 0 < loader.conversion.mean < 0.02


def test_a_missing_tensor_is_named(tiny_model_path: Path):
    checkpoint = open_checkpoint(tiny_model_path)
    choice = choose_quantization("auto", checkpoint.tensors.values())
    loader = CpuWeightLoader(checkpoint, choice, None, 2, lambda _done, _total: None)

    with pytest.raises(CheckpointError, match=r"no tensor lm_head\.weight"):
        loader.load([Parameter("head", (512, 64), ("lm_head.weight",), is_linear=True)])


MEMORY = """
import resource, sys
from pathlib import Path
from engine.checkpoint.checkpoint import open_checkpoint
from engine.kernels.cpu.library import library
from engine.kernels.cpu.loading import CpuWeightLoader
from engine.kernels.cpu.quantization import choose_quantization
from engine.models.registry import family_of

library()
checkpoint = open_checkpoint(Path(sys.argv[1]))
parameters = family_of(checkpoint.config).parameters(checkpoint.config)
choice = choose_quantization("auto", checkpoint.tensors.values())
loader = CpuWeightLoader(checkpoint, choice, None, 2, lambda _done, _total: None)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
weights = loader.load(parameters)
print(before, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, weights.num_bytes)
assert "gguf" not in sys.modules
"""


def test_packing_needs_little_more_memory_than_its_result_and_no_gguf_package(smollm2_path: Path):
    command = [sys.executable, "-c", MEMORY, str(smollm2_path)]

    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)

    before, after, num_bytes = map(int, done.stdout.split())
    assert (after - before) * 1024 < num_bytes + (48 << 20)
