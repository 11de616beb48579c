"""No code that turns bytes or text of others into objects or code, anywhere in the product."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("appliance", "engine", "dashboard")
FORBIDDEN_MODULES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "marshal",
                     "shelve", "jsonpickle"}  # fmt: skip
FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__"}
FORBIDDEN_METHODS = {"recv_pyobj", "send_pyobj", "create_task_unsafe"}
FORBIDDEN_PROCESSES = {"Queue", "Pipe", "Manager", "SimpleQueue", "JoinableQueue"}
SHELLS = {"system", "popen"}


def findings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the line and name of everything that may not stand in our code."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                for name in names:
                    if name.name.split(".")[0] in FORBIDDEN_MODULES:
                        yield node.lineno, f"import {name.name}"
            case ast.ImportFrom(module=str(module), names=names):
                if module.split(".")[0] in FORBIDDEN_MODULES:
                    yield node.lineno, f"from {module}"
                if module.split(".")[0] == "multiprocessing":
                    for name in names:
                        if name.name in FORBIDDEN_PROCESSES:
                            yield node.lineno, f"multiprocessing.{name.name}"
            case ast.Call(func=ast.Name(id=called)) if called in FORBIDDEN_CALLS:
                yield node.lineno, f"{called}()"
            case ast.Call(func=ast.Attribute(value=value, attr=called), keywords=keywords):
                yield from _call(node.lineno, value, called, keywords)
            case _:
                pass


def _call(
    line: int, value: ast.expr, called: str, keywords: list[ast.keyword]
) -> Iterator[tuple[int, str]]:
    owner = value.id if isinstance(value, ast.Name) else ""
    if called in FORBIDDEN_METHODS:
        yield line, called
    if owner == "multiprocessing" and called in FORBIDDEN_PROCESSES:
        yield line, f"multiprocessing.{called}"
    if owner == "os" and called in SHELLS:
        yield line, f"os.{called}"
    if owner == "torch" and called == "load":
        yield line, "torch.load"
    for keyword in keywords:
        is_true = isinstance(keyword.value, ast.Constant) and keyword.value.value is True
        if keyword.arg in {"shell", "allow_pickle", "trust_remote_code"} and is_true:
            yield line, f"{keyword.arg}=True"


def sources() -> list[Path]:
    return sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


def test_the_product_is_scanned():
    assert len(sources()) > 50


@pytest.mark.parametrize("package", PACKAGES)
def test_nothing_forbidden_stands_in(package: str):
    found = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in sorted((ROOT / package).rglob("*.py"))
        for line, name in findings(ast.parse(path.read_text(encoding="utf-8")))
    ]

    assert found == []


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "import os, marshal",
        "from dill import loads",
        "from multiprocessing import Queue",
        "multiprocessing.Pipe()",
        "socket.recv_pyobj()",
        "eval('1')",
        "exec('1')",
        "os.system('x')",
        "subprocess.run('x', shell=True)",
        "numpy.load('x', allow_pickle=True)",
        "torch.load('x')",
    ],
)
def test_the_scan_finds(source: str):
    assert list(findings(ast.parse(source)))


@pytest.mark.parametrize(
    "source", ["model.eval()", "re.compile('x')", "json.load(f)", "queue.Queue()", "shell=True"]
)
def test_the_scan_leaves_alone(source: str):
    assert not list(findings(ast.parse(source)))
