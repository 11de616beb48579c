"""Pages of other sites and rebound names do not get in."""

from collections.abc import AsyncIterator

import httpx
import pytest

from tests.appliance.supervisor.admin.conftest import SITE, Plane

pytestmark = pytest.mark.anyio

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
ENGINES = "/admin/v1/engines"


@pytest.mark.parametrize(
    "host",
    [
        "localhost", "localhost:8001", "127.0.0.1", "127.8.9.1:80", "[::1]:8001", "192.0.2.7:8001",
        "box.example", "BOX.example:8001",
    ],
)  # fmt: skip
async def test_our_own_hosts_are_served(admin: httpx.AsyncClient, host: str):
    assert (await admin.get(ENGINES, headers={"host": host})).status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil.com"])
@pytest.mark.parametrize("path", [ENGINES, "/livez"])
async def test_a_foreign_host_is_refused_with_every_method(
    admin: httpx.AsyncClient, host: str, path: str
):
    for method in METHODS:
        answer = await admin.request(method, path, headers={"host": host})
        assert (answer.status_code, answer.json()["code"]) == (403, "host_not_allowed")


@pytest.mark.parametrize(
    "host",
    ["x/livez?a=", "a b", "a@b", "a#b", "", "127.0.0.1:8001:1", "[::1", "a\\b", "127.0.0.1/"],
)
async def test_a_malformed_host_is_a_bad_request(
    admin: httpx.AsyncClient, local: httpx.AsyncClient, host: str
):
    for caller in (admin, local):
        answer = await caller.get(ENGINES, headers={"host": host})
        assert (answer.status_code, answer.json()["code"]) == (400, "malformed_host")


@pytest.mark.parametrize("hosts", [[], [b"localhost", b"localhost"], [b"localhost", b"evil"]])
async def test_exactly_one_host_header_is_needed(plane: Plane, hosts: list[bytes]):
    statuses: list[int] = []

    async def receive() -> dict[str, object]:
        return {"type": "http.request", "body": b""}

    async def send(message: dict[str, object]) -> None:
        if "status" in message:
            statuses.append(int(str(message["status"])))

    scope = {
        "type": "http",
        "method": "GET",
        "path": "/livez",
        "scheme": "http",
        "headers": [(b"host", host) for host in hosts],
    }
    await plane.tcp(scope, receive, send)

    assert statuses == [400]


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:9999"},
        {"origin": f"{SITE}.evil.example"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"origin": "http://127.0.0.1:8001", "sec-fetch-site": "cross-site"},
    ],
)
async def test_a_page_of_another_site_is_refused(admin: httpx.AsyncClient, headers: dict[str, str]):
    for method in METHODS:
        answer = await admin.request(method, ENGINES, headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (403, "cross_site")
        assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize(
    "headers",
    [
        {"sec-fetch-site": "none"},
        {"sec-fetch-site": "same-origin", "origin": "http://127.0.0.1:8001"},
        {"sec-fetch-site": "cross-site", "origin": SITE},
    ],
)
async def test_our_own_and_configured_pages_pass(admin: httpx.AsyncClient, headers: dict[str, str]):
    answer = await admin.get(ENGINES, headers=headers)

    assert answer.status_code == 200
    allowed = answer.headers.get("access-control-allow-origin")
    assert allowed == (SITE if headers.get("origin") == SITE else None)


async def test_options_answers_only_as_preflight_of_a_configured_site(plane: Plane):
    transport = httpx.ASGITransport(app=plane.tcp)
    asked = {"access-control-request-method": "POST"}
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as browser:
        allowed = await browser.options(ENGINES, headers={**asked, "origin": SITE})
        foreign = await browser.options(
            ENGINES, headers={**asked, "origin": "https://evil.example"}
        )
        bare = await browser.options(ENGINES)

    assert allowed.status_code == 204
    assert allowed.headers["access-control-allow-origin"] == SITE
    assert "authorization" in allowed.headers["access-control-allow-headers"]
    assert foreign.status_code == 403
    assert bare.status_code == 401


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "", None])
async def test_a_body_that_is_not_declared_json_is_refused(
    plane: Plane, admin: httpx.AsyncClient, kind: str | None
):
    headers = {} if kind is None else {"content-type": kind}
    answer = await admin.post(f"{ENGINES}/e0/sleep", content=b'{"level": 1}', headers=headers)

    assert (answer.status_code, answer.json()["code"]) == (415, "not_json")
    assert plane.fleet.log == []


async def test_a_large_body_is_refused_whether_declared_or_not(
    plane: Plane, admin: httpx.AsyncClient
):
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(100):
            yield b" " * 1024

    kind = {"content-type": "application/json"}
    declared = await admin.post("/admin/v1/keys", content=b" " * 100_000, headers=kind)
    chunked = await admin.post("/admin/v1/keys", content=chunks(), headers=kind)

    assert (declared.status_code, chunked.status_code) == (413, 413)
    assert declared.json()["code"] == "body_too_large"
