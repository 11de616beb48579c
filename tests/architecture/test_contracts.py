"""The contracts between packages exist and cover the layers; `make check` holds them."""

import ast
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
CONTRACTS = {entry["id"]: entry for entry in SETTINGS["tool"]["importlinter"]["contracts"]}


def test_every_contract_of_the_design_is_there():
    assert {
        "direction",
        "engine-core-is-private",
        "no-torch-outside-the-engine",
        "logic-knows-no-telemetry",
        "wire-is-pure",
        "dashboard-speaks-http",
    } <= set(CONTRACTS)


def test_the_layers_are_in_order():
    assert CONTRACTS["direction"]["layers"] == ["dashboard", "appliance", "engine"]


def test_torch_is_forbidden_wherever_it_may_not_be():
    contract = CONTRACTS["no-torch-outside-the-engine"]

    assert {"appliance", "dashboard", "engine.wire"} <= set(contract["source_modules"])
    assert "torch" in contract["forbidden_modules"]


@pytest.mark.parametrize("package", ["engine", "appliance/gateway", "appliance/supervisor"])
def test_opentelemetry_is_imported_only_by_the_telemetry_package(package: str):
    """Deferred imports, too, which the linter's graph has but nobody reads."""
    imported = {
        name
        for path in (ROOT / package).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        for name in _names(node)
    }

    assert not {name for name in imported if name.split(".")[0] == "opentelemetry"}


def _names(node: ast.AST) -> list[str]:
    match node:
        case ast.Import(names=names):
            return [name.name for name in names]
        case ast.ImportFrom(module=str(module)):
            return [module]
        case _:
            return []


def test_the_admin_schemas_need_nothing_of_the_appliance():
    """The dashboard and the command line import them, and nothing else comes along."""
    admin = ROOT / "appliance/supervisor/admin"
    own = {f"appliance.supervisor.admin.{part}_schemas" for part in ("adapter", "insight")}
    files = (admin / "schemas.py", admin / "adapter_schemas.py", admin / "insight_schemas.py")
    trees = [ast.parse(file.read_text(encoding="utf-8")) for file in files]

    imported = {name for tree in trees for node in ast.walk(tree) for name in _names(node)}

    assert imported - own <= {"datetime", "typing", "pydantic"}


def test_nothing_in_the_code_is_left_to_do():
    marks = ("TO" + "DO", "FIX" + "ME", "XX" + "X:")
    found = [
        f"{path.relative_to(ROOT)}: {mark}"
        for package in ("appliance", "engine", "dashboard")
        for path in (ROOT / package).rglob("*.py")
        for mark in marks
        if mark in path.read_text(encoding="utf-8")
    ]

    assert found == []
