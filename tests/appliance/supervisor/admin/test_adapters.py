"""The adapter routes and their vLLM aliases."""

import httpx
import pytest

from tests.appliance.supervisor.admin.conftest import Plane

pytestmark = pytest.mark.anyio

API = "/admin/v1"
SQL = {"path": "/adapters/sql"}


async def test_an_adapter_is_put_shown_pinned_and_deleted(plane: Plane, admin: httpx.AsyncClient):
    put = await admin.put(f"{API}/adapters/sql", json={**SQL, "pinned": True})
    assert (put.status_code, put.json()["kind"], put.json()["state"]) == (202, "lora.load", "done")
    assert put.headers["location"] == f"{API}/operations/op-0"

    [row] = (await admin.get(f"{API}/adapters")).json()["items"]
    assert (await admin.get(f"{API}/adapters/sql")).json() == row
    assert (row["name"], row["pinned"], row["path"]) == ("sql", True, "/adapters/sql")
    assert [each["state"] for each in row["engines"]] == ["loaded", "loaded"]

    for verb in ("pin", "unpin"):
        answer = await admin.post(f"{API}/adapters/sql/{verb}")
        assert (answer.status_code, answer.json()["kind"]) == (202, f"lora.{verb}")
    assert (await admin.delete(f"{API}/adapters/sql")).status_code == 202
    assert (await admin.get(f"{API}/adapters")).json() == {"items": []}
    assert plane.fleet.log == [
        ("load /adapters/sql True", "sql", "k3"),
        ("pin True", "sql", "k3"),
        ("pin False", "sql", "k3"),
        ("unload", "sql", "k3"),
    ]


async def test_a_refused_adapter_is_a_problem_with_its_code_and_hint(admin: httpx.AsyncClient):
    answer = await admin.put(f"{API}/adapters/sql", json={"path": "/etc"})

    problem = answer.json()
    assert (answer.status_code, problem["code"]) == (422, "adapter_not_found")
    assert (problem["detail"], problem["hint"]) == ("no such directory", "Give another.")


@pytest.mark.parametrize(
    "body",
    [
        {}, {"path": ""}, {"path": 5}, {"path": None}, {"path": "/a" * 5000}, [], "x",
        {**SQL, "pinned": 5}, {**SQL, "model": 5}, {**SQL, "engines": ["e0"]},
    ],
)  # fmt: skip
async def test_a_body_that_makes_no_sense_loads_nothing(
    plane: Plane, admin: httpx.AsyncClient, body: object
):
    answer = await admin.put(f"{API}/adapters/sql", json=body)

    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request")
    assert plane.fleet.log == []


@pytest.mark.parametrize("name", ["..", "a/b", "%2e%2e", "a%00", "x%20y", ".%2f..%2fengines"])
async def test_a_name_that_leaves_its_place_in_the_path_reaches_no_other_route(
    plane: Plane, admin: httpx.AsyncClient, name: str
):
    answer = await admin.delete(f"{API}/adapters/{name}")

    assert answer.status_code in {404, 405}
    assert all(line[0] == "unload" for line in plane.fleet.log)


async def test_vllms_routes_wait_and_answer_in_plain_text(plane: Plane, admin: httpx.AsyncClient):
    body = {"lora_name": "sql", "lora_path": "/adapters/sql"}
    plane.fleet.is_slow = True
    plane.fleet.done.set()

    loaded = await admin.post("/v1/load_lora_adapter", json=body)
    again = await admin.post("/v1/load_lora_adapter", json=body)
    in_place = await admin.post("/v1/load_lora_adapter", json={**body, "load_inplace": True})
    unloaded = await admin.post("/v1/unload_lora_adapter", json={"lora_name": "sql"})

    assert (loaded.status_code, loaded.text) == (
        200,
        "Success: LoRA adapter 'sql' added successfully.",
    )
    assert loaded.headers["x-operation-id"] == "op-0"
    assert loaded.headers["deprecation"] == "true"
    assert (again.status_code, again.json()["error"]["type"]) == (400, "InvalidUserInput")
    assert "load_inplace" in again.json()["error"]["message"]
    assert in_place.status_code == 200
    assert (unloaded.status_code, unloaded.text) == (
        200,
        "Success: LoRA adapter 'sql' removed successfully.",
    )


@pytest.mark.parametrize(
    ("route", "body", "status", "kind"),
    [
        ("load", {}, 400, "InvalidUserInput"),
        ("load", {"lora_name": "sql"}, 400, "InvalidUserInput"),
        ("load", {"lora_name": "sql", "lora_path": "/etc"}, 404, "NotFoundError"),
        ("unload", {}, 400, "InvalidUserInput"),
        ("unload", {"lora_name": "none", "lora_int_id": 5}, 404, "NotFoundError"),
    ],
)
async def test_vllms_routes_refuse_as_vllm_does(
    admin: httpx.AsyncClient, route: str, body: dict[str, object], status: int, kind: str
):
    answer = await admin.post(f"/v1/{route}_lora_adapter", json=body)

    error = answer.json()["error"]
    assert (answer.status_code, error["type"], error["code"]) == (status, kind, status)
    assert error["message"]


async def test_vllms_load_that_an_engine_refuses_is_a_400_with_its_reason(
    plane: Plane, admin: httpx.AsyncClient
):
    plane.fleet.is_slow = True
    plane.fleet.finish = lambda operation_id, error="e1 refuses": type(plane.fleet).finish(
        plane.fleet, operation_id, error
    )
    plane.fleet.done.set()

    body = {"lora_name": "sql", "lora_path": "/adapters/sql"}
    answer = await admin.post("/v1/load_lora_adapter", json=body)

    assert (answer.status_code, answer.json()["error"]["type"]) == (400, "BadRequestError")
    assert answer.json()["error"]["message"] == "e1 refuses"


async def test_the_prefix_cache_is_reset_for_one_engine_or_all(
    plane: Plane, admin: httpx.AsyncClient
):
    one = await admin.post(f"{API}/engines/e0/reset-prefix-cache")
    every = await admin.post("/reset_prefix_cache")

    assert (one.status_code, one.json()["result"]) == (202, {"dropped_blocks": 3})
    assert (every.status_code, every.content) == (200, b"")
    assert [line[1] for line in plane.fleet.log] == ["e0", "e0", "e1"]
