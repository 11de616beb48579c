"""Who may pass: every route with every method, and the tricks that have opened other locks."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from appliance.gateway.app import build_routes
from appliance.gateway.auth import OPEN_PATHS
from tests.appliance.gateway.fake_supervisor import EXPIRED_KEY, KEY, VIEWER_KEY, FakeSupervisor
from tests.appliance.gateway.stand import CHAT, running

pytestmark = pytest.mark.anyio

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND")
TRICKS = (
    "//v1/models",
    "/v1/../health",
    "/v1/%2e%2e/health",
    "/v1%2fmodels",
    "/V1/models",
    "/v1/models/",
    "/v1/models;x",
    "/health/",
    "/health/../v1/models",
    "/livez%00",
    "/docs",
    "/openapi.json",
    "/metrics",
)


async def raw(port: int, request: bytes) -> bytes:
    """Send bytes as they are and return the whole answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        async with asyncio.timeout(5):
            return await reader.read()
    finally:
        writer.close()


async def raw_head(port: int, request: bytes) -> bytes:
    """The same for a connection that stays open."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        async with asyncio.timeout(5):
            return await reader.readuntil(b"\r\n\r\n")
    finally:
        writer.close()


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


async def test_every_route_and_method_is_shut_without_a_key(run_dir, tiny_model_path):
    async with running(run_dir, tiny_model_path) as stand:
        http = await stand.http(key=None)
        routes = build_routes(stand.gateway.plane)
        for path in (route.path.replace("{model_id:path}", "x") for route in routes):
            for method in METHODS:
                answer = await http.request(method, path)
                if path in OPEN_PATHS and method in ("GET", "HEAD"):
                    assert answer.status_code in (200, 503)
                else:
                    assert answer.status_code == 401, (method, path)
                    assert answer.headers["www-authenticate"] == "Bearer"
                assert answer.headers["x-request-id"]


async def test_no_spelling_of_a_path_gets_around_the_lock(run_dir, tiny_model_path):
    async with running(run_dir, tiny_model_path) as stand:
        for path in TRICKS:
            for method in ("GET", "POST", "OPTIONS"):
                line = f"{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
                assert status(await raw(stand.port, line.encode())) == 401, (method, path)


KEYRING = (
    ({"authorization": "Bearer wrong"}, 401),
    ({"authorization": "Bearer"}, 401),
    ({"authorization": f"Basic {KEY}"}, 401),
    ({"authorization": KEY}, 401),
    ({"authorization": f"Bearer {EXPIRED_KEY}"}, 401),
    ({"authorization": b"Bearer \xff\xfe"}, 401),
    ({"authorization": "Bearer " + "x" * 10_000}, 401),
    ({"x-api-key": KEY}, 401),
    ({"authorization": "Bearer ' OR 1=1--"}, 401),
    ({"x-original-url": "/health"}, 401),
    ({"x-forwarded-prefix": "/health"}, 401),
    ({"x-forwarded-for": "127.0.0.1"}, 401),
    ({"authorization": f"Bearer {VIEWER_KEY}"}, 403),
    ({"authorization": f"Bearer {KEY}"}, 200),
    ({"authorization": f"bearer {KEY}"}, 200),
)


async def test_only_an_inference_key_opens(run_dir, tiny_model_path):
    async with running(run_dir, tiny_model_path) as stand:
        http = await stand.http(key=None)
        for headers, expected in KEYRING:
            answer = await http.get("/v1/models", headers=headers)

            assert answer.status_code == expected, headers
            if expected != 200:
                code = {401: "invalid_api_key", 403: "insufficient_permissions"}[expected]
                assert answer.json()["error"]["code"] == code


async def test_two_authorization_headers_open_nothing(run_dir, tiny_model_path):
    async with running(run_dir, tiny_model_path) as stand:
        line = b"Authorization: Bearer " + KEY.encode() + b"\r\n"

        answer = await raw(
            stand.port,
            b"GET /v1/models HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" + line * 2 + b"\r\n",
        )

        assert status(answer) == 401


HOST_LINES = (
    b"",
    b"Host: x\r\nHost: y\r\n",
    b"Host: x/health?a=\r\n",
    b"Host: x#y\r\n",
    b"Host: a@b\r\n",
    b"Host: a b\r\n",
    b"Host: \r\n",
)


async def test_a_malformed_host_is_refused_before_anything_else(run_dir, tiny_model_path):
    async with running(run_dir, tiny_model_path) as stand:
        for lines in HOST_LINES:
            answer = await raw(
                stand.port, b"GET /health HTTP/1.1\r\nConnection: close\r\n" + lines + b"\r\n"
            )

            assert status(answer) == 400, lines
            assert b'"error"' in answer


async def test_an_absolute_target_does_not_change_the_decision(run_dir, tiny_model_path):
    async with running(run_dir, tiny_model_path) as stand:
        answer = await raw(
            stand.port,
            b"GET http://x/v1/models HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        )

        assert status(answer) == 401


async def test_trust_follows_the_listener(run_dir, tiny_model_path):
    async with running(run_dir, tiny_model_path) as stand:
        http = await stand.local_http()

        answer = await http.post("/v1/chat/completions", json={**CHAT, "max_tokens": 1})

        assert answer.status_code == 200
        assert "x-ratelimit-limit-requests" not in answer.headers
        assert (await stand.supervisor.record(answer.json()["id"][-24:])).key_id is None


async def test_wrong_url_and_wrong_method_have_the_openai_shape(run_dir, tiny_model_path):
    async with running(run_dir, tiny_model_path) as stand:
        http = await stand.http()

        missing = await http.get("/v1/nothing")
        wrong = await http.get("/v1/chat/completions")
        options = await http.options("/v1/models")

        assert (missing.status_code, missing.json()["error"]["code"]) == (404, "unknown_url")
        assert (wrong.status_code, wrong.json()["error"]["code"]) == (405, "method_not_allowed")
        assert wrong.headers["allow"] == "POST"
        assert options.status_code == 405


async def test_a_preflight_answers_allowed_origins_only(run_dir, tiny_model_path):
    preflight = {"origin": "https://a.example", "access-control-request-method": "POST"}
    async with running(run_dir, tiny_model_path, cors_origins=("https://a.example",)) as stand:
        http = await stand.http(key=None)

        allowed = await http.options("/v1/chat/completions", headers=preflight)
        foreign = await http.options(
            "/v1/chat/completions", headers={**preflight, "origin": "https://b.example"}
        )
        plain = await http.options("/v1/models", headers={"origin": "https://a.example"})

        assert allowed.status_code == 204
        assert allowed.headers["access-control-allow-origin"] == "https://a.example"
        assert foreign.status_code == plain.status_code == 401
        assert "access-control-allow-origin" not in foreign.headers


async def test_without_keys_web_pages_still_do_not_reach_it(run_dir, tiny_model_path):
    def open_up(supervisor: FakeSupervisor) -> None:
        supervisor.auth_required = False

    async with running(run_dir, tiny_model_path, prepare=open_up) as stand:
        http = await stand.http(key=None)

        plain = await http.get("/v1/models")
        rebound = await http.get("/v1/models", headers={"host": "evil.example"})
        foreign = await http.get("/v1/models", headers={"origin": "https://evil.example"})

        assert plain.status_code == 200
        assert rebound.json()["error"]["code"] == "host_not_allowed"
        assert foreign.json()["error"]["code"] == "origin_not_allowed"


async def test_content_types_and_sizes_are_bounded(run_dir, tiny_model_path):
    async with running(run_dir, tiny_model_path) as stand:
        http = await stand.http()
        url = "/v1/chat/completions"

        typed = await http.post(url, content=b"{}", headers={"content-type": "text/plain"})
        untyped = await http.post(url, content=b"{}")
        zipped = await http.post(url, json={}, headers={"content-encoding": "gzip"})
        large = await http.post(
            url, content=b" " * (3 << 20), headers={"content-type": "application/json"}
        )

        async def trickle() -> AsyncIterator[bytes]:
            for _ in range(300):
                yield b" " * 10_000

        chunked = await http.post(
            url, content=trickle(), headers={"content-type": "application/json"}
        )

        assert [a.status_code for a in (typed, untyped, zipped)] == [415, 415, 415]
        assert large.status_code == chunked.status_code == 413
        assert large.json()["error"]["code"] == "request_too_large"


async def test_a_large_body_is_refused_before_it_is_sent_for(run_dir, tiny_model_path):
    async with running(run_dir, tiny_model_path) as stand:
        head = (
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 5000000\r\n"
            b"Content-Type: application/json\r\nExpect: 100-continue\r\n"
        )
        key = b"Authorization: Bearer " + KEY.encode() + b"\r\n"

        assert status(await raw_head(stand.port, head + b"\r\n")) == 401
        assert status(await raw_head(stand.port, head + key + b"\r\n")) == 413


async def test_large_headers_and_junk_are_answered_in_shape(run_dir, tiny_model_path):
    async with running(run_dir, tiny_model_path) as stand:
        many = b"".join(b"x-%d: 1\r\n" % number for number in range(200))
        large = b"x: " + b"y" * 40_000 + b"\r\n"
        start = b"GET /health HTTP/1.1\r\nHost: x\r\n"

        answers = [
            await raw(stand.port, start + many + b"\r\n"),
            await raw(stand.port, start + large + b"\r\n"),
        ]
        junk = await raw(stand.port, b"\x00\xff junk\r\n\r\n")

        assert [status(answer) for answer in answers] == [431, 431]
        assert status(junk) == 400
        assert b'"error"' in junk


async def test_a_client_that_never_finishes_its_headers_is_cut_off(
    run_dir, tiny_model_path, monkeypatch
):
    monkeypatch.setattr("appliance.gateway.http_protocol.HEADER_DEADLINE_S", 0.1)
    async with running(run_dir, tiny_model_path) as stand:
        reader, writer = await asyncio.open_connection("127.0.0.1", stand.port)
        writer.write(b"GET /health HTTP/1.1\r\nHo")
        try:
            async with asyncio.timeout(5):
                rest = await reader.read()
        except ConnectionResetError:
            rest = b""
        writer.close()

        assert rest == b""


async def test_a_websocket_upgrade_is_an_ordinary_request(run_dir, tiny_model_path):
    async with running(run_dir, tiny_model_path) as stand:
        upgrade = b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        answer = await raw_head(
            stand.port, b"GET /v1/models HTTP/1.1\r\nHost: x\r\n" + upgrade + b"\r\n"
        )

        assert status(answer) == 401


async def test_before_the_first_fleet_state_nobody_passes(run_dir, tiny_model_path, monkeypatch):
    monkeypatch.setattr("appliance.gateway.auth.FIRST_STATE_TIMEOUT_S", 0.05)
    async with running(run_dir, tiny_model_path) as stand:
        stand.gateway.plane.fleet.state = None
        remote, local = await stand.http(), await stand.local_http()

        answers = [await http.get("/v1/models") for http in (remote, local)]

        assert [answer.status_code for answer in answers] == [503, 503]
        assert (await remote.get("/livez")).status_code == 200
        assert (await remote.get("/startupz")).json() == {"status": "starting", "engines": []}
