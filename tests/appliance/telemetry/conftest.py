"""A hub on a file of its own, closed at the end of the test."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from appliance.telemetry.hub import Hub, HubConfig


@pytest.fixture
async def hub(tmp_path: Path) -> AsyncIterator[Hub]:
    made = Hub(HubConfig(trace_db_path=tmp_path / "traces.sqlite"))
    yield made
    await made.close()
