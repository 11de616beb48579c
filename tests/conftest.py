"""Fixtures that every test may use."""

import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tiny_model import make_tiny_model

os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # as engine/__main__ does, before torch


def pytest_configure(config: pytest.Config) -> None:
    """Keep packed weights of tests out of the user's cache; workers of a run share a directory."""
    if not hasattr(config, "workerinput") and "QUARTERDECK_WEIGHT_CACHE" not in os.environ:
        directory = tempfile.mkdtemp(prefix="quarterdeck-test-weights-")
        os.environ["QUARTERDECK_WEIGHT_CACHE"] = directory
        config.add_cleanup(lambda: shutil.rmtree(directory, ignore_errors=True))


@pytest.fixture(autouse=True)
def logging_is_as_before() -> Iterator[None]:
    """A test that configures the logging of its process does not change what others print."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def tiny_model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random llama directory; its tokenizer and template are real."""
    return make_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The default model; `make test` pulls it first."""
    from appliance.config.paths import model_dir
    from appliance.model_store.resolve import resolve

    return resolve("smollm2", model_dir(None, os.environ)).path


@pytest.fixture(scope="session")
def gemma3_path() -> Path:
    """Gemma 3 270M, for tests alone; `make test` pulls it first."""
    from appliance.config.paths import model_dir
    from appliance.model_store.resolve import resolve

    return resolve("gemma3-270m", model_dir(None, os.environ)).path


@pytest.fixture
def run_dir() -> Iterator[Path]:
    """A short directory for sockets: pytest's own paths are too long for ipc."""
    path = Path(tempfile.mkdtemp(prefix="qd-", dir="/tmp"))
    yield path
    shutil.rmtree(path, ignore_errors=True)
