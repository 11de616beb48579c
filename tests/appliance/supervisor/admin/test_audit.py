"""Every call that would change something is audited and every answer counted, allowed or not."""

import hashlib
import json
from collections.abc import Callable

import httpx
import pytest

from tests.appliance.supervisor.admin.conftest import Plane

pytestmark = pytest.mark.anyio

AsKey = Callable[[str | None], httpx.AsyncClient]


async def test_a_verb_is_entered_with_its_operation(plane: Plane, admin: httpx.AsyncClient):
    body = json.dumps({"level": 2}).encode()
    headers = {"content-type": "application/json"}
    answer = await admin.post("/admin/v1/engines/e0/sleep", content=body, headers=headers)

    (entry,) = plane.insight.audit.kept
    assert (entry.method, entry.route, entry.target) == (
        "POST", "/admin/v1/engines/{engine_id}/sleep", "e0",
    )  # fmt: skip
    assert (entry.status, entry.scope) == (202, "admin")
    assert entry.operation == answer.json()["id"]
    assert entry.trace_id == answer.json()["trace_id"]
    assert entry.body_sha256 == hashlib.sha256(body).hexdigest()
    assert entry.source == "127.0.0.1"


async def test_the_routes_that_look_like_vllms_name_their_operations_too(
    plane: Plane, admin: httpx.AsyncClient
):
    answer = await admin.post("/sleep")

    (entry,) = plane.insight.audit.kept
    assert entry.status == 200
    assert entry.operation
    assert entry.operation == answer.headers["x-operation-id"]


async def test_reading_is_counted_and_not_entered(plane: Plane, admin: httpx.AsyncClient):
    await admin.get("/admin/v1/engines")
    await admin.get("/admin/v1/engines/none")
    await admin.get("/admin/v1/nothing")

    assert plane.insight.audit.kept == []
    assert plane.insight.answers == [
        ("/admin/v1/engines", 200), ("/admin/v1/engines/{engine_id}", 404), ("other", 404),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("key", "method", "path", "content", "status", "actor"),
    [
        (None, "POST", "/admin/v1/engines/e0/sleep", None, 401, "anonymous"),
        ("viewer-secret", "POST", "/admin/v1/engines/e0/sleep", None, 403, None),
        ("admin-secret", "DELETE", "/admin/v1/requests/nothing", None, 404, None),
        ("admin-secret", "POST", "/admin/v1/nothing", None, 404, None),
        ("admin-secret", "DELETE", "/admin/v1/engines", None, 405, None),
        ("admin-secret", "POST", "/admin/v1/keys", b'{"scope": "boss"}', 422, None),
        ("admin-secret", "POST", "/admin/v1/keys", b"{" * 70_000, 413, None),
    ],
)
async def test_refusals_are_entered_and_counted(
    plane: Plane,
    as_key: AsKey,
    key: str | None,
    method: str,
    path: str,
    content: bytes | None,
    status: int,
    actor: str | None,
):
    headers = {} if content is None else {"content-type": "application/json"}
    async with as_key(key) as client:
        answer = await client.request(method, path, content=content, headers=headers)

    assert answer.status_code == status
    (entry,) = plane.insight.audit.kept
    assert entry.status == status
    assert (entry.actor == "anonymous") == (actor == "anonymous")
    assert plane.insight.answers == [(entry.route, status)]


async def test_a_conflict_is_entered(plane: Plane, local: httpx.AsyncClient):
    plane.fleet.states["e0"] = "crash_loop"
    assert (await local.post("/admin/v1/engines/e0/wake")).status_code == 409

    (entry,) = plane.insight.audit.kept
    assert (entry.actor, entry.scope, entry.status) == ("local", "admin", 409)


async def test_a_made_key_is_named_and_its_secret_is_not(plane: Plane, admin: httpx.AsyncClient):
    made = (await admin.post("/admin/v1/keys", json={"name": "x"})).json()
    await admin.delete(f"/admin/v1/keys/{made['id']}")

    create, revoke = plane.insight.audit.kept
    assert create.target == revoke.target == made["id"]
    assert made["secret"] not in repr(plane.insight.audit.kept)


async def test_a_path_cannot_forge_or_leak(plane: Plane, as_key: AsKey):
    path = "/admin/v1/%1b%5b2J%0aforged/qd_0a1b2c3d4e_secretsecret"
    async with as_key(None) as client:
        await client.post(path)
    (entry,) = plane.insight.audit.kept

    assert entry.target == r"/admin/v1/\x1b[2J\nforged/qd_***"
    assert entry.route == "other"


async def test_the_entry_stands_before_the_answer(plane: Plane):
    seen: list[int] = []

    async def send(message: object) -> None:
        seen.append(plane.insight.audit.num_written)

    async def receive() -> dict[str, object]:
        return {"type": "http.request", "body": b"", "more_body": False}

    scope = {
        "type": "http", "method": "POST", "path": "/admin/v1/engines/e0/wake", "query_string": b"",
        "headers": [(b"host", b"localhost")], "client": None, "scheme": "http",
        "http_version": "1.1", "server": None, "asgi": {"version": "3.0"},
    }  # fmt: skip
    await plane.local(scope, receive, send)

    assert seen == [1, 1]
    assert plane.insight.audit.kept[0].source is None


async def test_logs_and_audit_are_routes(plane: Plane, admin: httpx.AsyncClient, as_key: AsKey):
    plane.insight.logs.add("hello", level="warning", exception="Traceback")
    await admin.post("/admin/v1/engines/e0/wake")

    params = {"process": "e0", "level": "warning", "after": 0, "limit": 5, "contains": "h"}
    lines = (await admin.get("/admin/v1/logs", params=params)).json()["items"]
    assert [(line["text"], line["exception"]) for line in lines] == [("hello", "Traceback")]
    assert plane.insight.logs.asked == [
        {"process": "e0", "min_level": "warning", "after_id": 0, "limit": 5, "contains": "h"}
    ]
    assert (await admin.get("/admin/v1/logs", params={"level": "loud"})).status_code == 422
    entries = (await admin.get("/admin/v1/audit")).json()["items"]
    assert [entry["route"] for entry in entries] == ["/admin/v1/engines/{engine_id}/wake"]
    assert (await admin.get("/admin/v1/audit/verify")).json()["ok"] is True
    async with as_key("operator-secret") as operator:
        assert (await operator.get("/admin/v1/audit")).status_code == 403
