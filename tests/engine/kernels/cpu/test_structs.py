"""What Python knows of the C interface is what the headers say."""

import ctypes
import re
from ctypes import c_char_p, c_double, c_float, c_int32, c_int64, c_void_p
from pathlib import Path
from typing import Any

import pytest

from engine.kernels.cpu import build, library, packing, sampling, structs
from engine.kernels.cpu.weights import Format

NATIVE = Path(library.__file__).parent / "native"
HEADERS = "".join((NATIVE / name).read_text() for name in ("abi.h", "pack.h"))
TEXT = re.sub(r"//[^\n]*", "", HEADERS)
STRUCTS: dict[str, type[ctypes.Structure]] = {
    "qd_segment": structs.Segment,
    "qd_linear": structs.Linear,
    "qd_norm": structs.Norm,
    "qd_layer": structs.Layer,
    "qd_model": structs.Model,
    "qd_request": structs.Request,
    "qd_update": structs.Update,
    "qd_update_list": structs.UpdateList,
    "qd_adapter_rows": structs.AdapterRows,
    "qd_step": structs.Step,
    "qd_logits": sampling._Logits,
    "qd_draws": sampling._Draws,
    "qd_penalties": sampling._Penalties,
    "qd_squares": packing._Squares,
}
NUMBERS = {"int32_t": c_int32, "int64_t": c_int64, "float": c_float, "double": c_double}
CONSTANTS = {name: int(value) for name, value in re.findall(r"\b(QD_[A-Z0-9_]+) = (-?\d+)", TEXT)}


def described(declared: str) -> list[tuple[str, str]]:
    """Return the names and types of `const float* a; int32_t b, c;`."""
    found: list[tuple[str, str]] = []
    for line in filter(None, (part.strip() for part in declared.split(";"))):
        kind, names = re.fullmatch(r"(?:const )?(\w+(?:\* ?(?:const\*)?)?) ?(.+)", line).groups()
        found += [(name.strip(), kind.strip()) for name in names.split(",")]
    return found


def fields_of(name: str) -> list[tuple[str, str]]:
    match = re.search(r"typedef struct \{([^}]*)\} " + name + ";", TEXT)
    assert match is not None, name
    return described(match[1])


def is_same(declared: str, kind: Any) -> bool:
    if not declared.endswith("*"):
        return kind is (NUMBERS.get(declared) or STRUCTS[declared])
    target = declared.rstrip("*")
    if kind in (c_void_p, c_char_p):
        return (target == "char") == (kind is c_char_p)
    return kind is ctypes.POINTER(STRUCTS[target])


def test_every_structure_is_compared():
    declared = set(re.findall(r"\} (qd_\w+);", TEXT))

    assert declared == {*STRUCTS, "qd_stored_row"}


@pytest.mark.parametrize("name", STRUCTS)
def test_structures_have_the_fields_of_the_header(name):
    declared, known = fields_of(name), STRUCTS[name]._fields_

    assert [field for field, _ in declared] == [field for field, _ in known]
    assert all(is_same(kind, known[at][1]) for at, (_, kind) in enumerate(declared))


def test_stored_rows_have_the_fields_of_the_header():
    kinds = {"uint8_t*": "u8", "int32_t": "i4"}
    declared = [(field, kinds[kind]) for field, kind in fields_of("qd_stored_row")]

    found = packing._ROW
    assert [(field, found.fields[field][0].str[1:]) for field in found.names] == declared
    assert ctypes.sizeof(c_void_p) == 8  # of the first


@pytest.mark.parametrize(
    ("known", "declared"),
    [
        (library.ABI_VERSION, "QD_ABI_VERSION"),
        (library.OK, "QD_OK"),
        (library.NO_MEMORY, "QD_NO_MEMORY"),
        (library.BAD_VALUE, "QD_BAD_VALUE"),
        *((format_, f"QD_{format_.name}") for format_ in Format),
        (build._INPUTS[Format.BF16], "QD_INPUT_BF16"),
        (build._INPUTS[Format.W4_G32], "QD_INPUT_I8_G32"),
        (build._INPUTS[Format.I8_G32], "QD_INPUT_I8_G32"),
        (build._INPUTS[Format.I8_G64], "QD_INPUT_I8_G64"),
        (build._ACTIVATIONS["silu"], "QD_SILU"),
        (build._ACTIVATIONS["gelu_tanh"], "QD_GELU_TANH"),
        (build.CACHE_DTYPES["bfloat16"], "QD_KV_BF16"),
        (build.CACHE_DTYPES["int8"], "QD_KV_I8"),
    ],
)
def test_constants_are_those_of_the_header(known, declared):
    assert known == CONSTANTS[declared]


@pytest.mark.parametrize(
    ("result", "name", "arguments"),
    [
        found
        for found in re.findall(r"QD_EXPORT (?:const )?(\w+\*?) (\w+)\(([^)]*)\)", TEXT)
        if found[1] not in ("qd_abi_version", "qd_pack")  # declared where they are called
    ],
)
def test_functions_are_declared_as_in_the_header(result, name, arguments):
    function = getattr(sampling._declared(), name)
    declared = described(";".join(arguments.split(",")))

    assert function.restype is None if result == "void" else is_same(result, function.restype)
    assert len(function.argtypes) == len(declared)
    assert all(is_same(kind, function.argtypes[at]) for at, (_, kind) in enumerate(declared))
