"""What the routes answer."""

import json
import sqlite3

import httpx
import pytest

from appliance.supervisor.admin.access import ROUTES
from tests.appliance.supervisor.admin.conftest import Plane
from tests.appliance.supervisor.admin.in_memory import REQUEST_ID

pytestmark = pytest.mark.anyio

API = "/admin/v1"


async def test_a_verb_answers_202_with_the_operation(plane: Plane, admin: httpx.AsyncClient):
    plane.fleet.is_slow = True

    answer = await admin.post(f"{API}/engines/e0/sleep", json={"level": 2, "mode": "abort"})

    assert answer.status_code == 202
    assert answer.headers["location"] == f"{API}/operations/op-0"
    assert answer.headers["retry-after"] == "1"
    assert answer.json()["state"] == "running"
    assert plane.fleet.log == [("sleep 2 abort", "e0", "k3")]
    assert (await admin.get(answer.headers["location"])).json() == answer.json()


async def test_a_verb_without_a_body_takes_the_defaults(plane: Plane, local: httpx.AsyncClient):
    for verb in ("sleep", "wake", "restart"):
        assert (await local.post(f"{API}/engines/e0/{verb}")).status_code == 202

    assert plane.fleet.log == [
        ("sleep 1 wait", "e0", "local"),
        ("wake", "e0", "local"),
        ("restart", "e0", "local"),
    ]


async def test_wait_answers_when_the_operation_ends_or_the_time_is_up(
    plane: Plane, admin: httpx.AsyncClient
):
    plane.fleet.is_slow = True

    in_time = await admin.post(f"{API}/engines/e0/sleep?wait=0.01")
    plane.fleet.done.set()
    ended = await admin.get(f"{API}/operations/op-0?wait=30")
    at_once = await admin.post(f"{API}/engines/e1/sleep?wait=30")

    assert (in_time.status_code, in_time.json()["state"]) == (202, "running")
    assert (ended.status_code, ended.json()["state"]) == (200, "done")
    assert (at_once.status_code, at_once.json()["state"]) == (202, "done")


async def test_a_conflict_says_the_state_and_what_is_possible(
    plane: Plane, admin: httpx.AsyncClient
):
    plane.fleet.states["e0"] = "crash_loop"

    answer = await admin.post(f"{API}/engines/e0/wake")

    problem = answer.json()
    assert answer.status_code == 409
    assert (problem["code"], problem["current_state"]) == ("conflict", "crash_loop")
    assert problem["allowed_actions"] == ["restart"]
    assert problem["hint"] == "Possible now: restart."


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", f"{API}/engines/e9", 404, "not_found"),
        ("POST", f"{API}/engines/e9/sleep", 404, "not_found"),
        ("GET", f"{API}/operations/nope", 404, "not_found"),
        ("GET", f"{API}/requests/nope", 404, "not_found"),
        ("GET", f"{API}/traces/nope", 404, "not_found"),
        ("DELETE", f"{API}/requests/nope", 404, "not_found"),
        ("DELETE", f"{API}/keys/nope", 404, "not_found"),
        ("GET", f"{API}/adapters/nope", 404, "not_found"),
        ("DELETE", f"{API}/adapters/nope", 404, "not_found"),
        ("POST", f"{API}/adapters/nope/pin", 404, "not_found"),
        ("POST", f"{API}/engines/e9/reset-prefix-cache", 404, "not_found"),
        ("PUT", f"{API}/adapters/nope", 422, "invalid_request"),
        ("GET", "/nope", 404, "no_such_route"),
        ("PUT", f"{API}/engines", 405, "method_not_allowed"),
        ("GET", f"{API}/requests?limit=0", 422, "invalid_request"),
        ("GET", f"{API}/requests?limit=x", 422, "invalid_request"),
        ("GET", f"{API}/operations/op-0?wait=-1", 422, "invalid_request"),
        ("POST", f"{API}/keys", 422, "invalid_request"),
    ],
)
async def test_every_error_is_a_problem(
    admin: httpx.AsyncClient, method: str, path: str, status: int, code: str
):
    answer = await admin.request(method, path)

    problem = answer.json()
    assert answer.status_code == problem["status"] == status
    assert answer.headers["content-type"] == "application/problem+json"
    assert problem["code"] == code
    assert problem["title"]
    assert problem["request_id"] == answer.headers["x-request-id"]


@pytest.mark.parametrize(
    "body",
    [
        '{"level": 3}', '{"level": "1; DROP"}', '{"mode": "keep"}', '{"timeout_s": 0}',
        '{"timeout_s": NaN}', '{"unknown": 1}', "[]", "{", '"x"', "1", '{"level": null}',
        '{"mode": "\\ud800"}', "[" * 20000, "\xff",
    ],
)  # fmt: skip
async def test_a_wrong_body_is_refused_and_does_nothing(
    plane: Plane, admin: httpx.AsyncClient, body: str
):
    answer = await admin.post(
        f"{API}/engines/e0/sleep",
        content=body.encode("latin-1"),
        headers={"content-type": "application/json"},
    )

    assert answer.status_code in {400, 422}
    assert answer.headers["content-type"] == "application/problem+json"
    assert plane.fleet.log == []


async def test_405_names_the_methods(admin: httpx.AsyncClient):
    assert (await admin.put(f"{API}/keys")).headers["allow"] == "GET, POST"


async def test_a_full_disk_is_said_with_what_to_do(
    plane: Plane, admin: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
):
    def full(body: object, actor: str) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(plane.keys, "create", full)

    answer = await admin.post(f"{API}/keys", json={"name": "x"})

    assert (answer.status_code, answer.json()["code"]) == (503, "storage_unavailable")
    assert "full" in answer.json()["detail"]
    assert "disk" in answer.json()["hint"]


async def test_a_bug_is_a_500_problem_that_tells_nothing(
    plane: Plane, admin: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
):
    plane.hub.error = RuntimeError("the secret of the bug")

    answer = await admin.get(f"{API}/stats")

    assert (answer.status_code, answer.json()["code"]) == (500, "internal_error")
    assert "secret of the bug" not in answer.text
    assert answer.json()["request_id"] in caplog.text
    assert "secret of the bug" in caplog.text


async def test_collections_are_items(local: httpx.AsyncClient):
    for name in (
        "engines",
        "adapters",
        "gateways",
        "operations",
        "requests",
        "traces",
        "events",
        "keys",
    ):
        answer = await local.get(f"{API}/{name}")
        assert answer.status_code == 200
        assert set(answer.json()) == {"items"}, name


async def test_the_index_links_to_what_exists(plane: Plane, local: httpx.AsyncClient):
    plane.hub.feed.put_nowait(None)
    index = (await local.get(f"{API}/")).json()

    assert index["name"] == "quarterdeck"
    for link in index["links"].values():
        assert (await local.get(link)).status_code == 200, link


async def test_the_description_is_behind_the_key_and_complete(local: httpx.AsyncClient):
    described = (await local.get(f"{API}/openapi.json")).json()

    assert f"{API}/engines/{{engine_id}}/sleep" in described["paths"]


async def test_the_description_names_the_scope_and_the_problems_of_each_route(
    local: httpx.AsyncClient,
):
    await local.get(f"{API}/openapi.json")
    described = (await local.get(f"{API}/openapi.json")).json()
    paths, components = described["paths"], described["components"]

    for (method, path), scope in ROUTES.items():
        operation = paths[path][method.lower()]
        assert operation["security"] == ([{"key": [scope]}] if scope else []), path
        assert "422" not in operation["responses"]
        assert ("default" in operation["responses"]) == (scope is not None)
    assert components["securitySchemes"]["key"]["scheme"] == "bearer"
    assert "allowed_actions" in components["schemas"]["Problem"]["properties"]
    refused = json.dumps(described).count("HTTPValidationError")
    assert refused == 0


@pytest.mark.parametrize("path", ["requests?state=blah", "traces?outcome=live"])
async def test_a_state_that_does_not_exist_is_refused_with_those_that_do(
    local: httpx.AsyncClient, path: str
):
    answer = await local.get(f"{API}/{path}")

    assert answer.status_code == 422
    assert "'finished', 'aborted', 'failed' or 'rejected'" in answer.json()["detail"]


async def test_a_key_is_shown_once(local: httpx.AsyncClient):
    created = await local.post(f"{API}/keys", json={"name": "grafana", "scope": "viewer"})

    assert created.status_code == 201
    assert created.headers["cache-control"] == "no-store"
    secret = created.json()["secret"]
    listed = await local.get(f"{API}/keys")
    assert secret not in listed.text
    assert created.headers["location"].rsplit("/", 1)[1] in listed.text


async def test_an_abort_is_confirmed_once(plane: Plane, local: httpx.AsyncClient):
    first = await local.delete(f"{API}/requests/{REQUEST_ID}")
    second = await local.delete(f"{API}/requests/{REQUEST_ID}")

    assert first.json() == {"id": REQUEST_ID, "state": "aborted", "completion_tokens": 3}
    assert (second.status_code, second.json()["current_state"]) == (409, "finished")


async def test_metrics_are_handed_through(local: httpx.AsyncClient):
    answer = await local.get("/metrics")

    assert answer.text == "quarterdeck_up 1\n"
    assert answer.headers["content-type"] == "text/plain; version=0.0.4"


async def test_probes_follow_the_fleet_and_need_no_key(plane: Plane, as_key):
    async with as_key(None) as nobody:

        async def statuses() -> list[int]:
            paths = ("/livez", "/startupz", "/readyz", "/health")
            return [(await nobody.get(path)).status_code for path in paths]

        assert await statuses() == [200, 200, 200, 200]
        plane.fleet.states = {"e0": "asleep"}
        assert await statuses() == [200, 200, 200, 200]
        plane.fleet.on_asleep = "reject"
        assert await statuses() == [200, 200, 503, 503]
        plane.fleet.states = {"e0": "starting"}
        plane.fleet.has_started = False
        assert await statuses() == [200, 503, 503, 503]
        body = (await nobody.get("/startupz")).json()
        assert body["status"] == "starting"
        assert set(body["engines"][0]) == {"id", "state", "phase", "progress"}


async def test_every_answer_has_an_id_and_no_two_share_it(local: httpx.AsyncClient):
    headers = {"x-request-id": "mine"}
    ids = {
        (await local.get(path, headers=headers)).headers["x-request-id"]
        for path in ("/livez", "/nope", f"{API}/engines")
    }

    assert len(ids) == 3
    assert "mine" not in ids


async def test_the_aliases_of_vllm_act_on_all_engines_and_wait(
    plane: Plane, admin: httpx.AsyncClient
):
    assert (await admin.get("/is_sleeping")).json() == {"is_sleeping": False}

    slept = await admin.post("/sleep?level=2&mode=wait")

    assert (slept.status_code, slept.content) == (200, b"")
    assert slept.headers["x-operation-id"] == "op-0, op-1"
    assert (await admin.get("/is_sleeping")).json() == {"is_sleeping": True}
    assert (await admin.post("/wake_up")).status_code == 200
    assert (await admin.get("/is_sleeping")).json() == {"is_sleeping": False}
    assert plane.fleet.log[:2] == [("sleep 2 wait", "e0", "k3"), ("sleep 2 wait", "e1", "k3")]


@pytest.mark.parametrize("path", ["/sleep?level=0", "/sleep?mode=keep", "/wake_up?tags=weights"])
async def test_what_an_alias_cannot_do_is_refused(
    plane: Plane, admin: httpx.AsyncClient, path: str
):
    assert (await admin.post(path)).status_code == 422
    assert plane.fleet.log == []


async def test_an_alias_whose_operation_fails_says_so(plane: Plane, admin: httpx.AsyncClient):
    plane.fleet.is_slow = True
    plane.fleet.finish = lambda operation_id, error="no memory": type(plane.fleet).finish(
        plane.fleet, operation_id, error
    )
    plane.fleet.done.set()

    answer = await admin.post("/sleep")

    assert (answer.status_code, answer.json()["code"]) == (502, "operation_failed")
    assert "no memory" in answer.json()["detail"]
