"""A streaming HTTP client that costs little: a load must not take the CPU from what it measures.

It speaks just enough HTTP/1.1 for one streamed answer on a connection of its own.
"""

import asyncio
import json
import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

from appliance.cli.data_plane import (
    DONE,
    NO_CONNECTION,
    SOCKET_URL,
    TIMED_OUT,
    DataPlaneError,
    check_listening,
    check_status,
    event_of,
)

CONNECT_S = 10.0
_READ_BYTES = 1 << 16
_LINE_LIMIT = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchTarget:
    """The server: the appliance's own unix socket, or any OpenAI-compatible URL."""

    socket_path: Path | None = None
    url: str | None = None
    """Without `/v1`."""
    api_key: str | None = field(default=None, repr=False)

    @property
    def headers(self) -> dict[str, str]:
        """What every request carries."""
        return {"authorization": f"Bearer {self.api_key}"} if self.api_key else {}

    def client(self) -> httpx.AsyncClient:
        """Return a client for questions that are not measured."""
        uds = str(self.socket_path) if self.url is None else None
        return httpx.AsyncClient(
            transport=httpx.AsyncHTTPTransport(uds=uds),
            base_url=self.url or SOCKET_URL,
            headers=self.headers,
            timeout=httpx.Timeout(None, connect=CONNECT_S),
            trust_env=False,
        )


async def stream_events(
    target: BenchTarget, path: str, body: dict[str, Any]
) -> AsyncGenerator[dict[str, Any], None]:
    """Post a body on a new connection and yield the events of the answer, to its last.

    Raises:
        DataPlaneError: not connected, refused, an error frame, or broken off.
    """
    async with _connection(target) as (reader, writer):
        try:
            writer.write(_request(target, path, body))
            answer, rest = await _answer(reader), b""
            while piece := await answer.piece():
                *lines, rest = (rest + piece).split(b"\n")
                for line in lines:
                    event = event_of(line.decode())
                    if event is DONE:
                        return
                    if event is not None:
                        yield event
        except OSError as error:
            raise DataPlaneError(f"the connection broke: {error}", NO_CONNECTION) from error
        except (asyncio.IncompleteReadError, ValueError) as error:
            raise DataPlaneError("an answer broke off") from error
    raise DataPlaneError("an answer broke off")


@asynccontextmanager
async def _connection(
    target: BenchTarget,
) -> AsyncGenerator[tuple[asyncio.StreamReader, asyncio.StreamWriter], None]:
    try:
        async with asyncio.timeout(CONNECT_S):
            reader, writer = await _connect(target)
    except TimeoutError as error:
        raise DataPlaneError("the server does not answer", TIMED_OUT) from error
    except (OSError, UnicodeError) as error:  # of a name that is none
        if target.url is None and target.socket_path is not None:
            check_listening(target.socket_path)
        raise DataPlaneError(f"cannot reach {target.url}: {error}", NO_CONNECTION) from error
    try:
        yield reader, writer
    finally:
        writer.close()


async def _connect(target: BenchTarget) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    if target.url is None:
        return await asyncio.open_unix_connection(target.socket_path, limit=_LINE_LIMIT)
    at = urlsplit(target.url)
    is_secret = at.scheme == "https"
    port = at.port or (443 if is_secret else 80)
    context = ssl.create_default_context() if is_secret else None
    return await asyncio.open_connection(at.hostname, port, ssl=context, limit=_LINE_LIMIT)


def _request(target: BenchTarget, path: str, body: dict[str, Any]) -> bytes:
    at, text = urlsplit(target.url or SOCKET_URL), json.dumps(body).encode()
    headers = {
        "host": at.netloc,
        "connection": "close",
        "content-type": "application/json",
        "content-length": str(len(text)),
    } | target.headers
    lines = [f"POST {at.path}{path} HTTP/1.1", *(f"{k}: {v}" for k, v in headers.items()), "", ""]
    return "\r\n".join(lines).encode() + text


@dataclass(frozen=True, slots=True)
class _Answer:
    """The body of an answer, as it comes."""

    reader: asyncio.StreamReader
    is_chunked: bool

    async def piece(self) -> bytes:
        """Return what came next; empty at the end."""
        if not self.is_chunked:
            return await self.reader.read(_READ_BYTES)
        size = int((await self.reader.readline()).partition(b";")[0], 16)
        return (await self.reader.readexactly(size + 2))[:-2]


async def _answer(reader: asyncio.StreamReader) -> _Answer:
    """Read the head of an answer; a refusal is raised."""
    status = int((await reader.readline()).partition(b" ")[2][:3])
    headers: dict[bytes, bytes] = {}
    while b":" in (line := await reader.readline()):
        name, _, value = line.partition(b":")
        headers[name.lower()] = value.strip().lower()
    answer = _Answer(reader, headers.get(b"transfer-encoding") == b"chunked")
    if status != int(httpx.codes.OK):
        content = b""
        while piece := await answer.piece():
            content += piece
        check_status(httpx.Response(status, content=content))
    return answer
