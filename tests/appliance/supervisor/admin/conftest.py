"""The two applications over in-memory ports, and clients for them."""

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

import httpx
import pytest
from starlette.types import ASGIApp

from appliance.supervisor.admin.app import create_admin_apps
from tests.appliance.supervisor.admin.in_memory import Fleet, Hub, Keys
from tests.appliance.supervisor.admin.in_memory_insight import InMemoryInsight

SITE = "https://panel.example"


@dataclass
class Plane:
    fleet: Fleet
    hub: Hub
    keys: Keys
    insight: InMemoryInsight
    tcp: ASGIApp
    local: ASGIApp


def client(app: ASGIApp, key: str | None = None) -> httpx.AsyncClient:
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8001", headers=headers)


@pytest.fixture
async def plane() -> Plane:
    fleet, hub, keys, insight = Fleet(), Hub(), Keys(), InMemoryInsight()
    tcp, local = create_admin_apps(fleet, hub, keys, insight.port(), [SITE], ["box.example"])
    return Plane(fleet, hub, keys, insight, tcp, local)


@pytest.fixture
async def admin(plane: Plane) -> AsyncIterator[httpx.AsyncClient]:
    """Over TCP with a key of the scope `admin`."""
    async with client(plane.tcp, "admin-secret") as opened:
        yield opened


@pytest.fixture
async def local(plane: Plane) -> AsyncIterator[httpx.AsyncClient]:
    """Over the unix socket."""
    async with client(plane.local) as opened:
        yield opened


@pytest.fixture
def as_key(plane: Plane) -> Callable[[str | None], httpx.AsyncClient]:
    """Over TCP with any key, or none."""
    return lambda key: client(plane.tcp, key)
