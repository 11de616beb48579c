"""Packed weights are those of the file, to the bit where a format can hold them."""

import ctypes
import hashlib
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from gguf.quants import dequantize, quantize
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.checkpoint.gguf_kinds import TYPE_IDS
from engine.checkpoint.tensors import read_tensor
from engine.kernels.cpu import packing
from engine.kernels.cpu.library import BAD_VALUE, OK, library
from engine.kernels.cpu.loading import LAYOUT_VERSION
from engine.kernels.cpu.packing import RowSource, Squares, packed_bias, panel_order
from engine.kernels.cpu.weights import (
    PANEL_ROWS,
    Format,
    PackedSegment,
    PackedWeight,
    panel_bytes,
)
from tests.engine.kernels.cpu.stored import BLOCK_KINDS, as_entry, random_stored, values_of
from tests.engine.kernels.cpu.unpacked import panel_values

EXACT = [
    ("BF16", Format.BF16), ("Q4_0", Format.W4_G32), ("Q4_1", Format.W4_G32),
    ("Q4_0", Format.I8_G32), ("Q5_0", Format.I8_G32), ("Q8_0", Format.I8_G32),
]  # fmt: skip
KINDS = ("F32", "F16", "BF16", *BLOCK_KINDS)
ROUNDED = [(kind, format_) for kind in KINDS for format_ in Format if (kind, format_) not in EXACT]


def packed(
    source: RowSource, format_: Format, width: int | None = None
) -> tuple[np.ndarray, Squares]:
    width = width or -(-source.columns // format_.group) * format_.group
    out = torch.full((source.num_panels * panel_bytes(format_, width),), 85, dtype=torch.uint8)
    squares = source.pack(range(source.num_panels), format_, width, out)
    return panel_values(out, format_, width), squares


def pack_floats(values: np.ndarray, format_: Format, folder: Path) -> tuple[np.ndarray, Squares]:
    rows = np.ascontiguousarray(values, np.float32)
    entry = as_entry(folder / "floats", "F32", rows.view(np.uint8), rows.shape[1])
    return packed(RowSource([entry], is_gate_up=False), format_)


@pytest.mark.parametrize(("kind", "format_"), EXACT)
def test_values_that_a_format_can_hold_stay_as_they_are(kind: str, format_: Format, tmp_path: Path):
    stored = random_stored(kind, 70, 512)
    entry = as_entry(tmp_path / "tensor", kind, stored, 512)

    values, squares = packed(RowSource([entry], is_gate_up=False), format_)

    assert np.array_equal(values[:70], values_of(kind, stored))
    assert squares == Squares()


@pytest.mark.parametrize(("kind", "format_"), ROUNDED)
def test_other_values_are_as_near_as_the_format_allows(kind: str, format_: Format, tmp_path: Path):
    stored = random_stored(kind, 40, 512)
    entry = as_entry(tmp_path / "tensor", kind, stored, 512)
    wanted = values_of(kind, stored)

    values, squares = packed(RowSource([entry], is_gate_up=False), format_)

    error = np.abs(values[:40] - wanted)
    if format_ is Format.BF16:
        assert np.all(error <= np.abs(wanted) * 2.0**-8)
    else:
        groups = wanted.reshape(40, -1, format_.group)
        step = (
            (groups.max(2) - groups.min(2)) / 15 * 1.2  # a finer grid may cut the ends off
            if format_ is Format.W4_G32
            else np.abs(groups).max(2) / 127
        )
        largest = np.abs(groups).max(2)
        bound = step * 0.51 + largest * 2.0**-10  # the scale is an fp16 number
        if format_ is Format.W4_G32:
            bound += step * 1.5
        assert np.all(error.reshape(groups.shape) <= bound[:, :, None])
    assert squares.error == pytest.approx(float((error.astype(float) ** 2).sum()), rel=1e-4)
    assert squares.values == pytest.approx(float((wanted.astype(float) ** 2).sum()), rel=1e-4)


def test_k_quants_of_four_bits_keep_their_grid(tmp_path: Path):
    stored = random_stored("Q4_K", 32, 1024)
    entry = as_entry(tmp_path / "tensor", "Q4_K", stored, 1024)

    values, squares = packed(RowSource([entry], is_gate_up=False), Format.W4_G32)

    wanted = values_of("Q4_K", stored)
    largest = np.abs(wanted).reshape(32, -1, 32).max(2).repeat(32, axis=1)
    assert np.all(np.abs(values - wanted) <= 2.5 * 2.0**-11 * (largest + 0.02 * 64))
    assert squares.relative < 5e-4


@pytest.mark.parametrize("format_", list(Format))
@settings(max_examples=25, deadline=None)
@given(
    rows=st.integers(1, 80),
    columns=st.integers(1, 150),
    is_gate_up=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_any_shape_is_padded_with_zeros(
    format_: Format,
    rows: int,
    columns: int,
    is_gate_up: bool,
    seed: int,
    tmp_path_factory: pytest.TempPathFactory,
):
    rows = 2 * rows if is_gate_up else rows
    wanted = np.random.default_rng(seed).standard_normal((rows, columns)).astype(np.float32)
    path = tmp_path_factory.getbasetemp() / "any_shape"
    source = RowSource([as_entry(path, "F32", wanted.view(np.uint8), columns)], is_gate_up)

    values, _ = packed(source, format_, width=-(-columns // 64) * 64)

    order = panel_order(rows, is_gate_up)
    assert len(values) == len(order) == source.num_panels * PANEL_ROWS
    assert sorted(order[order >= 0]) == list(range(rows))
    assert not values[order < 0].any()
    inner = values[order >= 0][:, :columns]
    assert np.all(np.abs(inner - wanted[order[order >= 0]]) < 0.6)
    if format_ is not Format.W4_G32:  # there the minimum stays, whose input is zero
        assert not values[:, columns:].any()


def test_gate_and_up_share_panels_whether_or_not_the_file_has_them_apart(tmp_path: Path):
    stored = random_stored("Q4_1", 2 * 40, 64)
    values = values_of("Q4_1", stored)
    gate = as_entry(tmp_path / "gate", "Q4_1", stored[:40], 64)
    up = as_entry(tmp_path / "up", "Q4_1", stored[40:], 64)
    fused = as_entry(tmp_path / "fused", "Q4_1", stored, 64)

    apart, _ = packed(RowSource([gate, up], is_gate_up=True), Format.W4_G32)
    together, _ = packed(RowSource([fused], is_gate_up=True), Format.W4_G32)

    assert np.array_equal(apart, together)
    panels = apart.reshape(3, 2, 16, 64)  # 40 padded to 48
    assert np.array_equal(panels[:, 0].reshape(48, 64)[:40], values[:40])
    assert np.array_equal(panels[:, 1].reshape(48, 64)[:40], values[40:])
    assert not panels[2, :, 8:].any()


@settings(max_examples=20, deadline=None)
@given(inner=st.integers(1, 400), first=st.integers(0, 20), count=st.integers(1, 9))
def test_a_part_of_a_fused_gate_and_up_is_read_without_what_lies_between(
    inner: int, first: int, count: int, tmp_path_factory: pytest.TempPathFactory
):
    stored = random_stored("Q8_0", 2 * inner, 32)
    path = tmp_path_factory.getbasetemp() / "fused"
    source = RowSource([as_entry(path, "Q8_0", stored, 32)], is_gate_up=True)
    panels = range(min(first, source.num_panels - 1), min(first + count, source.num_panels))
    order = panel_order(2 * inner, is_gate_up=True)[32 * panels.start : 32 * panels.stop]
    wanted = np.zeros((len(order), 32), np.float32)
    wanted[order >= 0] = values_of("Q8_0", stored)[order[order >= 0]]
    out = torch.zeros(len(panels) * panel_bytes(Format.I8_G32, 32), dtype=torch.uint8)

    source.pack(panels, Format.I8_G32, 32, out)

    assert np.array_equal(panel_values(out, Format.I8_G32, 32), wanted)
    content, places = packing._read(source.entries[0], order[order >= 0])
    assert np.array_equal(content.reshape(-1, 34)[places], stored[order[order >= 0]])
    assert len(content) <= 34 * (len(order) + 2 * PANEL_ROWS)


def test_gate_and_up_may_be_stored_in_two_kinds(tmp_path: Path):
    gate, up = random_stored("Q5_0", 16, 64), random_stored("Q8_0", 16, 64, seed=1)
    entries = [
        as_entry(tmp_path / "gate", "Q5_0", gate, 64),
        as_entry(tmp_path / "up", "Q8_0", up, 64),
    ]

    values, _ = packed(RowSource(entries, is_gate_up=True), Format.I8_G32)

    assert np.array_equal(values[:16], values_of("Q5_0", gate))
    assert np.array_equal(values[16:], values_of("Q8_0", up))


def test_heads_that_llama_cpp_interleaved_are_put_back(tmp_path: Path):
    queries = as_entry(tmp_path / "q", "Q8_0", random_stored("Q8_0", 96, 64), 64, heads=3)
    keys = as_entry(tmp_path / "k", "Q8_0", random_stored("Q8_0", 64, 64, seed=1), 64, heads=2)

    values, _ = packed(RowSource([queries, keys], is_gate_up=False), Format.I8_G32)

    assert np.array_equal(values[:96], read_tensor(queries))
    assert np.array_equal(values[96:], read_tensor(keys))


def test_parts_of_the_panels_are_the_parts_of_the_whole(tmp_path: Path):
    entry = as_entry(tmp_path / "q", "Q4_0", random_stored("Q4_0", 160, 64), 64, heads=2)
    source = RowSource([entry], is_gate_up=False)
    size = panel_bytes(Format.W4_G32, 64)
    whole = torch.zeros(source.num_panels * size, dtype=torch.uint8)
    parts = torch.zeros_like(whole)

    source.pack(range(source.num_panels), Format.W4_G32, 64, whole)
    for panel in range(source.num_panels):
        out = parts[panel * size : (panel + 1) * size]
        source.pack(range(panel, panel + 1), Format.W4_G32, 64, out)

    assert torch.equal(parts, whole)


def test_rounding_is_at_least_as_good_as_that_of_gguf(tmp_path: Path):
    weights = np.random.default_rng(0).standard_normal((64, 512)).astype(np.float32)

    def error(kind: GGMLQuantizationType) -> float:
        return float(np.square(dequantize(quantize(weights, kind), kind) - weights).sum())

    _, int8 = pack_floats(weights, Format.I8_G32, tmp_path)
    _, w4 = pack_floats(weights, Format.W4_G32, tmp_path)

    assert int8.error <= 1.001 * error(GGMLQuantizationType.Q8_0)
    assert w4.error < 0.85 * error(GGMLQuantizationType.Q4_1)


@pytest.mark.parametrize("format_", list(Format))
@pytest.mark.parametrize("value", [0.0, 1.0, -3.5, 1e-7, 6e4])
def test_groups_of_one_value_keep_it(format_: Format, value: float, tmp_path: Path):
    values, _ = pack_floats(np.full((3, 96), value), format_, tmp_path)

    assert values[:3, :96] == pytest.approx(np.float32(value), rel=0.006, abs=3e-8)


@pytest.mark.parametrize("format_", [Format.W4_G32, Format.I8_G32, Format.I8_G64])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 3e38])
def test_what_is_no_number_spoils_its_group_alone(format_: Format, bad: float, tmp_path: Path):
    weights = np.random.default_rng(1).standard_normal((2, 256)).astype(np.float32)
    clean, _ = pack_floats(weights, format_, tmp_path)
    weights[0, 70] = bad

    values, _ = pack_floats(weights, format_, tmp_path)

    assert np.isfinite(values).all()
    same = np.ones((2, 256), bool)
    same[0, 64:128] = False
    assert np.array_equal(values[:2][same], clean[:2][same])


@pytest.mark.parametrize("at", [0, 5, 31])
def test_four_bits_keep_the_range_of_the_numbers_beside_what_is_none(at: int, tmp_path: Path):
    weights = np.random.default_rng(1).standard_normal((2, 32)).astype(np.float32)
    weights[0, at] = np.nan
    weights[1] = np.nan

    values, _ = pack_floats(weights, Format.W4_G32, tmp_path)

    rest = np.arange(32) != at
    assert np.abs(values[0, rest] - weights[0, rest]).max() < 0.3
    assert np.isfinite(values[1]).all()


LAYOUT_1 = "021933277c48237e4ff1484ac5804cc32ca4948a66ff50ce5ad8b6c5dea883d7"
"""Of `LAYOUT_VERSION` 1."""


def test_other_bytes_are_another_version_of_the_layout(tmp_path: Path):
    digest = hashlib.sha256()
    for kind in KINDS:
        stored = random_stored(kind, 40, 256)
        source = RowSource([as_entry(tmp_path / "t", kind, stored, 256)], is_gate_up=True)
        for format_ in Format:
            out = torch.zeros(source.num_panels * panel_bytes(format_, 320), dtype=torch.uint8)
            source.pack(range(source.num_panels), format_, 320, out)
            digest.update(out.numpy().data)

    assert (LAYOUT_VERSION, digest.hexdigest()) == (1, LAYOUT_1), (
        "cached weights of the same version would be taken for these"
    )


def test_a_bias_lies_as_the_rows_of_its_weight_do():
    def segment(format_: Format, rows: int, first_column: int) -> PackedSegment:
        panels = torch.zeros(-(-rows // 32) * panel_bytes(format_, 64), dtype=torch.uint8)
        return PackedSegment(format_, rows, 64, first_column, panels)

    segments = (segment(Format.W4_G32, 48, 0), segment(Format.I8_G32, 16, 48))
    bias = torch.arange(64.0) + 1
    first, second = packed_bias(bias, PackedWeight(segments, 64, 64))
    assert first.tolist() == [*range(1, 49), *[0] * 16]
    assert second.tolist() == [*range(49, 65), *[0] * 16]

    gate_up = PackedWeight((segment(Format.BF16, 64, 0),), 32, 64)
    (both,) = packed_bias((torch.arange(40) + 1).to(torch.bfloat16), gate_up)
    assert both.dtype == torch.float32
    assert both.tolist() == [
        *range(1, 17), *range(21, 37), *range(17, 21), *[0] * 12, *range(37, 41), *[0] * 12,
    ]  # fmt: skip

    with pytest.raises(ValueError, match="a bias of 63 numbers"):
        packed_bias(bias[:63], PackedWeight(segments, 64, 64))
    with pytest.raises(ValueError, match="a bias of 66 numbers"):
        packed_bias(torch.zeros(66), gate_up)


@pytest.mark.parametrize(
    ("kind", "columns", "format_", "width", "status"),
    [
        ("Q8_0", 64, Format.I8_G32, 64, OK),
        ("Q8_0", 64, Format.I8_G32, 32, BAD_VALUE),  # narrower than the rows
        ("Q8_0", 48, Format.I8_G32, 64, BAD_VALUE),  # no whole blocks
        ("Q8_0", 64, Format.I8_G64, 96, BAD_VALUE),  # no whole groups
        ("IQ4_NL", 64, Format.I8_G32, 64, BAD_VALUE),  # unknown
        ("Q8_0", 64, 9, 64, BAD_VALUE),
        ("Q8_0", 0, Format.I8_G32, 64, BAD_VALUE),
    ],
)
def test_the_library_refuses_what_it_cannot_pack(
    kind: str, columns: int, format_: int, width: int, status: int
):
    stored = random_stored("Q8_0", PANEL_ROWS, 64)
    table = np.zeros(PANEL_ROWS, [("data", "u8"), ("kind", "i4"), ("pad", "i4")])
    table["data"] = stored.ctypes.data + np.arange(PANEL_ROWS) * stored.shape[1]
    table["kind"] = TYPE_IDS[kind]
    out, squares = np.full(8192, 7, np.uint8), np.zeros(2)

    found = library().qd_pack(
        ctypes.c_void_p(table.ctypes.data), 1, columns, int(format_), width,
        ctypes.c_void_p(out.ctypes.data), ctypes.c_void_p(squares.ctypes.data),
    )  # fmt: skip

    assert found == status
    assert (status == OK) or (out == 7).all()
