"""What an adapter's files must be, and that a refusal names what is wrong with them."""

import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from safetensors.torch import save_file as save_torch_file

from engine.core import adapter_reader
from engine.core.adapter_config import AdapterError
from engine.core.adapter_files import header_size
from engine.core.adapter_reader import AdapterReader, ReadAdapter, ReadCancelledError
from tests.engine.core.adapter_bench import make_reader
from tests.lora import make_adapter

Change = Callable[[dict[str, np.ndarray]], None]
FIRST = "base_model.model.model.layers.0.self_attn.q_proj."


@pytest.fixture(scope="module")
def reader(tiny_model_path: Path) -> AdapterReader:
    return make_reader(tiny_model_path, max_rank=64)


@pytest.fixture
def adapter(tmp_path: Path, tiny_model_path: Path) -> Path:
    return make_adapter(tmp_path / "a", rank=4, seed=1, model_dir=tiny_model_path)


def change_config(adapter: Path, **fields: object) -> None:
    file = adapter / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))


def change_tensors(adapter: Path, change: Change) -> None:
    file = adapter / "adapter_model.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, str(file))


def refusal(reader: AdapterReader, adapter: Path) -> str:
    with pytest.raises(AdapterError) as caught:
        reader.read(adapter)
    return str(caught.value)


# ---------------------------------------------------------------- sound ones


def test_each_matrix_lies_where_the_fused_layer_has_its_rows(reader: AdapterReader, adapter: Path):
    change_config(adapter, lora_alpha=10, alpha_pattern={"k_proj": 2})
    tensors = load_file(adapter / "adapter_model.safetensors")

    read = reader.read(adapter)

    (update,) = read.updates["layers.1.qkv"]
    product = update.up @ update.down
    scales, row = {"q": 2.5, "k": 0.5, "v": 2.5}, 0
    for part, scale in scales.items():
        key = f"base_model.model.model.layers.1.self_attn.{part}_proj."
        up, down = tensors[key + "lora_B.weight"], tensors[key + "lora_A.weight"]
        wanted = torch.from_numpy(up) @ torch.from_numpy(down) * scale
        torch.testing.assert_close(product[row : row + len(up)], wanted)
        row += len(up)
    assert (update.first_column, row) == (0, product.shape[0])


def test_parts_with_large_matrices_are_not_joined(tmp_path: Path, smollm2_path: Path):
    large = make_adapter(
        tmp_path / "a", rank=128, seed=1, model_dir=smollm2_path, targets=("gate_proj", "up_proj")
    )
    small = make_adapter(
        tmp_path / "b", rank=8, seed=1, model_dir=smollm2_path, targets=("q_proj", "v_proj")
    )
    reader = make_reader(smollm2_path)

    apart = reader.read(large).updates["layers.3.gate_up"]
    (joined,) = reader.read(small).updates["layers.3.qkv"]

    assert [(u.first_column, *u.up.shape) for u in apart] == [(0, 1536, 128), (1536, 1536, 128)]
    assert (joined.up.shape, joined.down.shape) == ((960, 16), (16, 576))
    assert not joined.up[576:768].any(), "keys do not change"


def test_facts_are_told(reader: AdapterReader, tmp_path: Path, tiny_model_path: Path):
    path = make_adapter(
        tmp_path / "b",
        rank=4,
        seed=0,
        model_dir=tiny_model_path,
        targets=("down_proj", "q_proj"),
        ranks={"q_proj": 9},
    )
    read = reader.read(path)

    assert (read.rank, read.targets) == (9, ("down_proj", "q_proj"))
    floats = 2 * (9 * (64 + 64) + 4 * (128 + 64))
    assert read.num_bytes == 4 * floats


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_weights_are_taken_exactly(
    reader: AdapterReader, adapter: Path, dtype: torch.dtype
):
    file = adapter / "adapter_model.safetensors"
    tensors = {name: torch.from_numpy(t).to(dtype) for name, t in load_file(file).items()}
    save_torch_file(tensors, str(file))

    (update,) = reader.read(adapter).updates["layers.0.output"]

    key = "base_model.model.model.layers.0.self_attn.o_proj."
    assert torch.equal(update.down, tensors[key + "lora_A.weight"].float())
    assert torch.equal(update.up, tensors[key + "lora_B.weight"].float())


def test_single_layers_may_be_left_out(reader: AdapterReader, adapter: Path):
    def drop(tensors: dict[str, np.ndarray]) -> None:
        for name in [name for name in tensors if ".layers.0." in name]:
            del tensors[name]

    change_tensors(adapter, drop)
    change_config(adapter, layers_to_transform=[1])

    assert {name.split(".")[1] for name in reader.read(adapter).updates} == {"1"}


@pytest.mark.parametrize("prefix", ["model.language_model.", "language_model.model."])
def test_an_adapter_of_the_same_model_inside_a_larger_one_fits(
    reader: AdapterReader, adapter: Path, prefix: str
):
    def rename(tensors: dict[str, np.ndarray]) -> None:
        for name in list(tensors):
            tensors[name.replace("model.layers", prefix + "layers")] = tensors.pop(name)

    before = reader.read(adapter)
    change_tensors(adapter, rename)

    assert reader.read(adapter).updates.keys() == before.updates.keys()


# ---------------------------------------------------------------- identity


def test_identity_is_what_changes_the_computation_and_nothing_else(
    reader: AdapterReader, adapter: Path
):
    def identity() -> str:
        return reader.read(adapter).content_hash

    first = identity()
    change_config(adapter, lora_dropout=0.1, base_model_name_or_path="elsewhere", revision="x")
    assert identity() == first
    moved = adapter.rename(adapter.with_name("moved"))
    assert reader.read(moved).content_hash == first
    moved.rename(adapter)

    seen = {first}
    for fields in ({"lora_alpha": 5}, {"use_rslora": True}, {"alpha_pattern": {"q_proj": 1}}):
        change_config(adapter, **fields)
        seen.add(identity())
    change_tensors(adapter, lambda tensors: tensors[FIRST + "lora_B.weight"].__iadd__(1))
    seen.add(identity())
    assert len(seen) == 5


# ---------------------------------------------------------------- refused configurations


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"peft_type": "IA3"}, "peft_type 'IA3' is not supported"),
        ({"peft_type": None}, "peft_type None is not supported"),
        ({"use_dora": True}, "DoRA"),
        ({"bias": "lora_only"}, "bias 'lora_only'"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"trainable_token_indices": [1]}, "trainable_token_indices"),
        ({"layer_replication": [[0, 1]]}, "layer_replication"),
        ({"init_lora_weights": "pissa_niter_4"}, "'pissa_niter_4' changes the base model"),
        ({"init_lora_weights": ["gaussian"]}, "changes the base model"),
        ({"target_modules": ["q_proj", "lm_head"]}, "target 'lm_head'"),
        ({"target_modules": ["model.embed_tokens"]}, "target 'model.embed_tokens'"),
        ({"r": 0}, "at least 1"),
        ({"r": 65}, "rank 65 is too high: this engine takes at most 64"),
        ({"rank_pattern": {"q_proj": 10**9}}, "rank 1000000000 is too high"),
        ({"r": "8"}, "adapter_config.json is not valid"),
        ({"lora_alpha": None}, "adapter_config.json is not valid"),
        ({"lora_alpha": 1e300}, "lora_B.weight has values that are not finite"),
        ({"rank_pattern": {"(a+)+": 4}}, "the pattern '(a+)+' is not supported"),
        ({"alpha_pattern": {"[9-0]": 4}}, "the pattern '[9-0]' is not supported"),
        ({"alpha_pattern": {".*.*.*.*x": 4}}, "is not supported"),
        ({"alpha_pattern": {"a" * 300: 4}}, "is not supported"),
        ({"alpha_pattern": {f"m{i}": 4 for i in range(600)}}, "more than 512"),
    ],
)
def test_what_plain_lora_cannot_express_is_refused(
    reader: AdapterReader, adapter: Path, fields: dict, text: str
):
    change_config(adapter, **fields)

    assert text in refusal(reader, adapter)


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"{", b"\xff\xfe", b'{"r": NaN}', b"[" * 100_000, b'{"peft_type": 1}']
)
def test_a_corrupt_configuration_is_refused(reader: AdapterReader, adapter: Path, content: bytes):
    (adapter / "adapter_config.json").write_bytes(content)

    assert "adapter_config.json" in refusal(reader, adapter) or "peft_type" in refusal(
        reader, adapter
    )


# ---------------------------------------------------------------- refused tensors


def rename(old: str, new: str) -> Change:
    return lambda tensors: tensors.update({new: tensors.pop(old)})


def put(name: str, value: np.ndarray) -> Change:
    return lambda tensors: tensors.update({name: value})


def spoil(value: float) -> Change:
    return lambda tensors: tensors[FIRST + "lora_A.weight"].__setitem__((1, 2), value)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda tensors: tensors.clear(), "has no tensors"),
        (
            lambda tensors: tensors.pop(FIRST + "lora_A.weight"),
            "q_proj.lora_B.weight has no lora_A",
        ),
        (
            lambda tensors: tensors.pop(FIRST + "lora_B.weight"),
            "q_proj.lora_A.weight has no lora_B",
        ),
        (put(FIRST + "lora_A.weight", np.ones((4, 63), np.float32)), "(4, 63), expected (4, 64)"),
        (put(FIRST + "lora_A.weight", np.ones((5, 64), np.float32)), "(5, 64), expected (4, 64)"),
        (put(FIRST + "lora_B.weight", np.ones((4, 64), np.float32)), "(4, 64), expected (64, 4)"),
        (put(FIRST + "lora_B.weight", np.ones(256, np.float32)), "has shape (256,)"),
        (put(FIRST + "lora_B.weight", np.ones((64, 4), np.int32)), "dtype I32"),
        (put(FIRST + "lora_B.weight", np.ones((64, 4), np.float64)), "dtype F64"),
        (spoil(np.nan), "q_proj.lora_A.weight has values that are not finite"),
        (spoil(-np.inf), "q_proj.lora_A.weight has values that are not finite"),
        (
            put(FIRST + "lora_magnitude_vector", np.ones(64, np.float32)),
            "lora_magnitude_vector is neither A nor B",
        ),
        (
            put("base_model.model.lm_head.lora_A.weight", np.ones((4, 64), np.float32)),
            "no linear layer lm_head",
        ),
        (
            rename(FIRST + "lora_A.weight", FIRST.replace("0", "9") + "lora_A.weight"),
            "no linear layer model.layers.9.self_attn.q_proj",
        ),
        (
            rename(FIRST + "lora_A.weight", FIRST.replace("q_proj", "c_attn") + "lora_A.weight"),
            "no linear layer model.layers.0.self_attn.c_attn",
        ),
        (
            put(
                FIRST.replace("model.layers", "layers") + "lora_A.weight",
                np.ones((4, 64), np.float32),
            ),
            "is there twice",
        ),
        (
            rename(FIRST + "lora_A.weight", "vision.layers.0.self_attn.q_proj.lora_A.weight"),
            "is neither A nor B",
        ),
    ],
)
def test_a_wrong_tensor_is_refused_by_name(
    reader: AdapterReader, adapter: Path, change: Change, text: str
):
    change_tensors(adapter, change)

    assert text in refusal(reader, adapter)


def test_a_listed_target_without_weights_is_refused(reader: AdapterReader, adapter: Path):
    def drop(tensors: dict[str, np.ndarray]) -> None:
        for name in [name for name in tensors if "o_proj" in name]:
            del tensors[name]

    change_tensors(adapter, drop)

    assert "lists o_proj" in refusal(reader, adapter)


def test_an_adapter_of_another_model_is_refused(smollm2_path: Path, adapter: Path):
    assert "expected (4, 1536)" in refusal(make_reader(smollm2_path), adapter)


# ---------------------------------------------------------------- refused files


def weights(adapter: Path) -> Path:
    return adapter / "adapter_model.safetensors"


def test_missing_files_are_named(reader: AdapterReader, adapter: Path):
    weights(adapter).rename(adapter / "adapter_model.bin")
    assert "adapter_model.bin is never read" in refusal(reader, adapter)
    (adapter / "adapter_model.bin").unlink()
    assert "adapter_model.safetensors cannot be opened: No such file" in refusal(reader, adapter)
    (adapter / "adapter_config.json").unlink()
    assert "adapter_config.json cannot be opened" in refusal(reader, adapter)
    assert "cannot be opened" in refusal(reader, adapter / "elsewhere")
    assert "is no directory" in refusal(reader, Path(__file__))
    assert "cannot be opened" in refusal(reader, Path("/tmp/\0"))


def test_a_truncated_or_padded_file_is_refused(reader: AdapterReader, adapter: Path):
    whole = weights(adapter).read_bytes()
    for length in (0, 4, 8, 100, len(whole) // 2, len(whole) - 1):
        weights(adapter).write_bytes(whole[:length])
        assert "adapter_model.safetensors" in refusal(reader, adapter)
    weights(adapter).write_bytes(whole + b"\0")
    assert "goes on after its last tensor" in refusal(reader, adapter)


def test_tensors_that_overlap_or_leave_gaps_are_refused(reader: AdapterReader, adapter: Path):
    down = {"dtype": "F32", "shape": [4, 64], "data_offsets": [0, 1024]}
    up = {"dtype": "F32", "shape": [64, 4], "data_offsets": [0, 1024]}
    for offset in (0, 512, 1028):
        up["data_offsets"] = [offset, offset + 1024]
        names = {FIRST + "lora_A.weight": down, FIRST + "lora_B.weight": up}
        header = json.dumps(names).encode()
        data = struct.pack("<Q", len(header)) + header + bytes(offset + 1024)
        weights(adapter).write_bytes(data)
        assert "out of place" in refusal(reader, adapter)


def test_a_giant_header_or_file_is_refused_before_it_is_read(reader: AdapterReader, adapter: Path):
    weights(adapter).write_bytes(struct.pack("<Q", 1 << 40) + b"{}")
    assert "header is too long" in refusal(reader, adapter)
    with weights(adapter).open("wb") as file:
        file.truncate(1 << 40)  # sparse
    assert "an adapter of this model has at most" in refusal(reader, adapter)
    with (adapter / "adapter_config.json").open("wb") as file:
        file.truncate(2 << 20)
    assert "adapter_config.json has 2097152 bytes" in refusal(reader, adapter)


def test_pipes_directories_and_links_out_of_the_directory_are_refused(
    reader: AdapterReader, adapter: Path, tmp_path: Path
):
    for name in ("adapter_model.safetensors", "adapter_config.json"):
        file, kept = adapter / name, tmp_path / f"kept-{name}"
        file.rename(kept)
        os.mkfifo(file)
        assert f"{name} is no regular file" in refusal(reader, adapter)
        file.unlink()
        file.mkdir()
        assert f"{name} is no regular file" in refusal(reader, adapter)
        file.rmdir()
        file.symlink_to(kept)
        assert f"{name} is a link out of its directory" in refusal(reader, adapter)
        file.unlink()
        file.symlink_to(file)
        assert f"{name} cannot be opened" in refusal(reader, adapter)
        file.unlink()
        kept.rename(file)
    assert reader.read(adapter).rank == 4


def test_a_link_within_the_directory_is_followed(reader: AdapterReader, adapter: Path):
    weights(adapter).rename(adapter / "blob")
    weights(adapter).symlink_to("blob")

    assert reader.read(adapter).rank == 4


def test_a_file_that_is_swapped_once_it_is_open_is_not_read_by_the_header_of_the_other(
    reader: AdapterReader, tmp_path: Path, tiny_model_path: Path, monkeypatch: pytest.MonkeyPatch
):
    keys, values = (
        make_adapter(tmp_path / name, rank=4, seed=1, model_dir=tiny_model_path, targets=[name])
        for name in ("k_proj", "v_proj")
    )
    plain = reader.read(keys)
    change_config(keys, target_modules=None)

    def swap(file: BinaryIO) -> int:
        weights(values).replace(weights(keys))
        return header_size(file)

    monkeypatch.setattr(adapter_reader, "header_size", swap)
    found = reader.read(keys)

    assert (found.targets, found.content_hash) == (plain.targets, plain.content_hash)


def test_a_file_that_changes_while_it_is_read_is_refused(reader: AdapterReader, adapter: Path):
    def change() -> bool:
        os.utime(weights(adapter), ns=(0, 0))
        return False

    with pytest.raises(AdapterError, match="changed while it was read"):
        reader.read(adapter, change)


def test_nobody_waits_for_the_rest(reader: AdapterReader, adapter: Path):
    with pytest.raises(ReadCancelledError):
        reader.read(adapter, lambda: True)


def test_any_bytes_give_an_adapter_or_a_reason(reader: AdapterReader, adapter: Path):
    whole = bytearray(weights(adapter).read_bytes())
    rng = np.random.default_rng(0)
    refused = 0
    for turn in range(150):
        spoiled = bytearray(whole)
        for at in rng.integers(0, 3000 if turn % 2 else len(whole), 3):
            spoiled[at] = rng.integers(0, 256)
        weights(adapter).write_bytes(spoiled)
        try:
            assert isinstance(reader.read(adapter), ReadAdapter)
        except AdapterError:
            refused += 1
    assert 0 < refused < 150
