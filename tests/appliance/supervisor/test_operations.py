"""The register of long verbs."""

import asyncio

import pytest

from appliance.supervisor.admin.ports import NotFoundError
from appliance.supervisor.admin.schemas import Operation, Progress
from appliance.supervisor.operations import OperationRegistry

pytestmark = pytest.mark.anyio


@pytest.fixture
def published() -> list[Operation]:
    return []


@pytest.fixture
def registry(published: list[Operation]) -> OperationRegistry:
    return OperationRegistry(published.append, limit=3)


async def test_every_change_is_published_once(
    registry: OperationRegistry, published: list[Operation]
):
    operation = registry.begin("sleep", "e0", "local")
    registry.update(operation.id, phase="drain", progress=Progress(done=1, total=2))
    registry.update(operation.id, phase="drain", progress=Progress(done=1, total=2))
    registry.finish(operation.id, {"freed_bytes": 7})
    registry.fail(operation.id, "too late")
    registry.update(operation.id, phase="too late")

    assert [(o.state, o.phase) for o in published] == [
        ("running", None),
        ("running", "drain"),
        ("done", "drain"),
    ]
    assert published[-1].result == {"freed_bytes": 7}
    assert published[-1].ended_at is not None
    assert operation.id.startswith("op-")


async def test_a_long_poll_returns_at_the_end(registry: OperationRegistry):
    operation = registry.begin("wake", "e0", "local")
    async with asyncio.TaskGroup() as tasks:
        poll = tasks.create_task(registry.wait(operation.id, 30.0))
        await asyncio.sleep(0)
        registry.fail(operation.id, "it died")

    assert (poll.result().state, poll.result().error) == ("failed", "it died")


async def test_a_long_poll_returns_at_its_time(registry: OperationRegistry):
    operation = registry.begin("wake", "e0", "local")

    assert (await registry.wait(operation.id, 0.01)).state == "running"


async def test_an_unknown_operation_is_not_found(registry: OperationRegistry):
    with pytest.raises(NotFoundError):
        await registry.wait("op-0", 1.0)


async def test_the_running_operation_of_a_target_is_found(registry: OperationRegistry):
    wake = registry.begin("wake", "e0", "local")
    registry.begin("sleep", "e1", "local")

    assert registry.running("e0") == wake
    assert registry.running("e0", "sleep") is None
    registry.finish(wake.id, {})
    assert registry.running("e0") is None


async def test_old_operations_are_forgotten_but_no_running_one(registry: OperationRegistry):
    oldest = registry.begin("restart", "e0", "local")
    ended = registry.already_done("wake", "e1", "local", "ready")
    later = [registry.begin("sleep", f"e{n}", "local") for n in (2, 3)]

    assert [o.id for o in registry.all()] == [later[1].id, later[0].id, oldest.id]
    with pytest.raises(NotFoundError):
        registry.get(ended.id)
    assert ended.result == {"already": "ready"}
    assert registry.context(oldest.id).trace_id == oldest.trace_id
