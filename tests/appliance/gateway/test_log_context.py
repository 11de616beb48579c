"""Log lines of a request carry its ids, and its exceptions do not quote it."""

import json
import logging
from collections.abc import Iterator

import pytest
from starlette.types import Receive, Scope, Send

from appliance.gateway.request_context import RequestContextMiddleware, context_of
from engine.log_lines import LineFormatter

pytestmark = pytest.mark.anyio

PROMPT = "CANARY prompt"
SCOPE = {
    "type": "http", "method": "POST", "path": "/v1/chat/completions", "headers": [],
}  # fmt: skip


class Kept(logging.Handler):
    """Keeps lines as a gateway writes them."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(LineFormatter("gateway-0", 3, "json"))
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


@pytest.fixture
def kept() -> Iterator[Kept]:
    handler = Kept()
    logging.getLogger().addHandler(handler)
    yield handler
    logging.getLogger().removeHandler(handler)


async def serve(app: object) -> list[dict[str, object]]:
    sent: list[dict[str, object]] = []

    async def send(message: dict[str, object]) -> None:
        sent.append(message)

    async def receive() -> dict[str, object]:
        return {"type": "http.disconnect"}

    middleware = RequestContextMiddleware(app, is_local=True, observe=lambda *_: None)
    await middleware(dict(SCOPE), receive, send)
    return sent


async def test_a_failing_request_is_logged_with_its_ids_and_without_its_text(kept: Kept):
    seen: list[tuple[str, str]] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        context = context_of(scope)
        seen.append((context.request_id, context.trace.trace_id))
        int(PROMPT)

    sent = await serve(app)
    (line,) = kept.lines
    fields = json.loads(line)

    assert sent[0]["status"] == 500
    assert [(fields["request_id"], fields["trace_id"])] == seen
    assert (fields["process"], fields["epoch"], fields["level"]) == ("gateway-0", 3, "error")
    assert "int(PROMPT)" in fields["exception"]
    assert fields["exception"].endswith("ValueError: (message withheld: it may quote the request)")
    assert PROMPT not in line


async def test_one_requests_ids_do_not_leak_into_the_next(kept: Kept):
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        logging.getLogger("x").warning("here")

    await serve(app)
    await serve(app)
    logging.getLogger("x").warning("outside")

    first, second, outside = map(json.loads, kept.lines)
    assert first["request_id"] != second["request_id"]
    assert "request_id" not in outside
