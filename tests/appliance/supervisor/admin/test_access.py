"""Nobody passes without a key of the right scope, on any route with any method."""

from collections.abc import Callable

import httpx
import pytest
from fastapi.routing import APIRoute

from appliance.supervisor.admin.access import ROUTES
from appliance.supervisor.admin.app import create_routes
from tests.appliance.supervisor.admin.conftest import Plane
from tests.appliance.supervisor.admin.in_memory import Fleet, Hub, Keys
from tests.appliance.supervisor.admin.in_memory_insight import InMemoryInsight

pytestmark = pytest.mark.anyio

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "BREW")
SCOPES = ("inference", "viewer", "operator", "admin")
STREAM = "/admin/v1/events/stream"

AsKey = Callable[[str | None], httpx.AsyncClient]


def concrete(template: str) -> str:
    path = template.replace("{engine_id}", "e0").replace("{operation_id}", "op-0")
    path = path.replace("{request_id}", "req-x").replace("{key_id}", "k0")
    return path.replace("{name}", "sql-lora")


PATHS = sorted({concrete(template) for _, template in ROUTES})
CLOSED = [path for path in PATHS if ROUTES.get(("GET", path), "closed") is not None]


async def test_the_table_names_exactly_the_routes_that_exist():
    described = create_routes(Fleet(), Hub(), Keys(), InMemoryInsight().port()).openapi()["paths"]

    served = {(method.upper(), path) for path in described for method in described[path]}

    assert served == set(ROUTES)


async def test_no_route_hides_from_the_description():
    app = create_routes(Fleet(), Hub(), Keys(), InMemoryInsight().port())
    routes = [route for found in app.routes for route in found.original_router.routes]

    assert all(isinstance(route, APIRoute) and route.include_in_schema for route in routes)


@pytest.mark.parametrize("path", CLOSED)
async def test_no_method_opens_a_closed_route_without_a_key(as_key: AsKey, path: str):
    async with as_key(None) as nobody, as_key("wrong") as stranger:
        for method in METHODS:
            for caller in (nobody, stranger):
                answer = await caller.request(method, path)
                assert answer.status_code == 401, (method, path)
                assert answer.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize("path", [*CLOSED, "/admin/v1/none", "/", "/v1/models", "/openapi.json"])
async def test_an_inference_key_opens_nothing(as_key: AsKey, path: str):
    async with as_key("inference-secret") as caller:
        for method in METHODS:
            answer = await caller.request(method, path)
            assert answer.status_code == 403, (method, path)


@pytest.mark.parametrize("scope", SCOPES)
async def test_each_scope_opens_its_routes_and_no_more(as_key: AsKey, plane: Plane, scope: str):
    plane.hub.feed.put_nowait(None)  # ends the stream
    async with as_key(f"{scope}-secret") as caller:
        for (method, template), needed in ROUTES.items():
            answer = await caller.request(method, concrete(template))
            allowed = needed is None or SCOPES.index(scope) >= SCOPES.index(needed)
            assert (answer.status_code == 403) is not allowed, (method, template)
            assert answer.status_code != 401


async def test_an_unknown_path_tells_a_stranger_nothing(as_key: AsKey):
    async with as_key(None) as nobody, as_key("viewer-secret") as viewer:
        assert (await nobody.get("/admin/v1/none")).status_code == 401
        assert (await viewer.get("/admin/v1/none")).json()["code"] == "no_such_route"


@pytest.mark.parametrize(
    "path",
    [
        "//admin/v1/engines",
        "/livez/../admin/v1/engines",
        "/%2e%2e/admin/v1/engines",
        "/admin/v1%2fengines",
        "/ADMIN/V1/engines",
        "/admin/v1/engines/",
        "/admin/v1/engines;x",
        "/livez/",
        "/livez%0a",
        "/livez%00",
        "/livez/x",
        "/livez;/admin/v1/engines",
        "/admin/v1/engines?key=admin-secret",
        "/admin/v1/engines?access_token=admin-secret",
    ],
)
async def test_no_spelling_of_a_path_gets_around_the_key(as_key: AsKey, path: str):
    async with as_key(None) as nobody:
        for method in ("GET", "POST", "DELETE"):
            assert (await nobody.request(method, path)).status_code == 401


@pytest.mark.parametrize(
    "headers",
    [
        {"x-original-url": "/livez"},
        {"x-rewrite-url": "/livez"},
        {"x-forwarded-prefix": "/livez"},
        {"x-http-method-override": "GET"},
        {"x-forwarded-for": "127.0.0.1", "x-real-ip": "127.0.0.1"},
        {"forwarded": "for=unix:"},
        {"authorization": "Basic YWRtaW46YWRtaW4="},
        {"authorization": "admin-secret"},
        {"authorization": "Bearer"},
        {"authorization": "Bearer "},
        {"authorization": "Bearer viewer-secretx"},
        {"authorization": "Bearer " + "x" * 100_000},
        {"x-api-key": "admin-secret"},
        {"cookie": "key=admin-secret"},
    ],
)
async def test_no_header_takes_the_place_of_the_key(as_key: AsKey, headers: dict[str, str]):
    async with as_key(None) as nobody:
        assert (await nobody.get("/admin/v1/engines", headers=headers)).status_code == 401


@pytest.mark.parametrize("secret", [b"\xff\xfe", b"a\x00b", b"' OR 1=1--", "ключ".encode()])
async def test_a_key_of_any_bytes_is_only_wrong(as_key: AsKey, secret: bytes):
    async with as_key(None) as nobody:
        answer = await nobody.get(
            "/admin/v1/engines", headers=[(b"authorization", b"Bearer " + secret)]
        )
        assert answer.status_code == 401


async def test_two_authorization_headers_are_refused(as_key: AsKey):
    twice = [("authorization", "Bearer admin-secret"), ("authorization", "Bearer wrong")]
    async with as_key(None) as nobody:
        for headers in (twice, twice[::-1], [twice[0], twice[0]]):
            assert (await nobody.get("/admin/v1/engines", headers=headers)).status_code == 401


async def test_the_scheme_of_the_key_may_be_written_in_any_case(as_key: AsKey):
    async with as_key(None) as nobody:
        answer = await nobody.get(
            "/admin/v1/engines", headers={"authorization": "BEARER viewer-secret"}
        )
        assert answer.status_code == 200


async def test_a_revoked_key_is_refused_at_once(admin: httpx.AsyncClient, as_key: AsKey):
    async with as_key("viewer-secret") as viewer:
        assert (await viewer.get("/admin/v1/engines")).status_code == 200
        assert (await admin.delete("/admin/v1/keys/k1")).status_code == 200
        assert (await viewer.get("/admin/v1/engines")).status_code == 401


async def test_trust_follows_the_listener(local: httpx.AsyncClient, as_key: AsKey):
    me = (await local.get("/admin/v1/whoami")).json()
    assert (me["actor"], me["scope"], me["transport"]) == ("local", "admin", "unix")

    ignored = {"authorization": "Bearer inference-secret"}
    assert (await local.get("/admin/v1/keys", headers=ignored)).status_code == 200

    async with as_key("operator-secret") as operator:
        me = (await operator.get("/admin/v1/whoami")).json()
        assert (me["actor"], me["scope"], me["transport"]) == ("k2", "operator", "tcp")
        assert me["key"]["name"] == "operator"


async def test_the_local_user_may_use_every_route(plane: Plane, local: httpx.AsyncClient):
    plane.hub.feed.put_nowait(None)
    for method, template in ROUTES:
        answer = await local.request(method, concrete(template))
        assert answer.status_code not in {401, 403, 405}, (method, template)


async def test_a_websocket_is_refused(plane: Plane):
    sent: list[str] = []

    async def receive() -> dict[str, str]:
        return {"type": "websocket.connect"}

    async def send(message: dict[str, object]) -> None:
        sent.append(str(message["type"]))

    scope = {"type": "websocket", "path": STREAM, "headers": []}
    await plane.tcp(scope, receive, send)

    assert sent == ["websocket.close"]
