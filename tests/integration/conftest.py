"""Running appliances that tests share."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.appliance_process import ApplianceProcess


@pytest.fixture
def root() -> Iterator[Path]:
    """A short directory for one appliance."""
    path = Path(tempfile.mkdtemp(prefix="qd-it-", dir="/tmp"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(scope="module")
def tiny_appliance(tiny_model_path: Path) -> Iterator[ApplianceProcess]:
    """An appliance with the tiny random model, shared by the tests of a file."""
    path = Path(tempfile.mkdtemp(prefix="qd-it-", dir="/tmp"))
    appliance = ApplianceProcess(path, str(tiny_model_path), "--dtype", "float32", "--drain-s", "5")
    try:
        yield appliance.start()
    finally:
        appliance.stop()
        shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(scope="module")
def smollm2_appliance(smollm2_path: Path) -> Iterator[ApplianceProcess]:
    """An appliance with the default model, shared by the tests of a file."""
    path = Path(tempfile.mkdtemp(prefix="qd-it-", dir="/tmp"))
    appliance = ApplianceProcess(path, "smollm2", "--drain-s", "5")
    try:
        yield appliance.start()
    finally:
        appliance.stop()
        shutil.rmtree(path, ignore_errors=True)
