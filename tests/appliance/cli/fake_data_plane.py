"""A data plane that answers what a test tells it to: real HTTP, on a unix socket or a port."""

import json
import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

DONE = "data: [DONE]"
Answer = Callable[[dict[str, Any]], list[str]]
"""Takes the request's body, gives the lines of the event stream."""


def chat_lines(*texts: str, usage: bool = True) -> list[str]:
    """Return a whole chat stream with these pieces of text."""
    lines = [": waking", chunk({"delta": {"role": "assistant"}})]
    lines += [chunk({"delta": {"content": text}}) for text in texts]
    lines.append(chunk({"delta": {}, "finish_reason": "stop"}))
    if usage:
        lines.append(usage_chunk(prompt=7, completion=len(texts)))
    return [*lines, DONE]


def completion_lines(num_tokens: int, *, prompt: int = 5) -> list[str]:
    """Return a whole completion stream of this length."""
    lines = [chunk({"text": "x", "finish_reason": None}) for _ in range(num_tokens)]
    last = chunk({"text": "", "finish_reason": "length"})
    return [*lines, last, usage_chunk(prompt=prompt, completion=num_tokens), DONE]


def chunk(choice: dict[str, Any]) -> str:
    return "data: " + json.dumps({"choices": [{"index": 0, **choice}], "usage": None})


def usage_chunk(*, prompt: int, completion: int) -> str:
    usage = {"prompt_tokens": prompt, "completion_tokens": completion}
    return "data: " + json.dumps({"choices": [], "usage": usage})


class FakeDataPlane:
    """What it was asked, and what it answers.

    Attributes:
        answer: Gives the lines of a stream.
        status: Other than 200: refuse with this status and `error`.
        requests: Bodies that came, in order.
        keys: `Authorization` headers that came.
    """

    def __init__(self, answer: Answer, *, status: int = 200, error: Any = None) -> None:
        self.answer = answer
        self.status = status
        self.error = error
        self.models = ["smollm2", "other"]
        self.max_model_len = 8192
        self.requests: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.most_at_once = 0
        self._at_once = 0
        self._lock = threading.Lock()

    def enter(self, body: dict[str, Any], key: str | None) -> None:
        with self._lock:
            self.requests.append(body)
            self.keys.append(key)
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)

    def leave(self) -> None:
        with self._lock:
            self._at_once -= 1

    @contextmanager
    def on_socket(self, path: Path) -> Iterator[Path]:
        """Serve on a unix socket."""
        with _running(_UnixServer(str(path), self._handler())):
            yield path

    @contextmanager
    def on_port(self) -> Iterator[str]:
        """Serve on a free port of the loopback."""
        server = _TcpServer(("127.0.0.1", 0), self._handler())
        with _running(server):
            yield f"http://127.0.0.1:{server.server_address[1]}"

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        plane = self

        class Handler(_Handler):
            data_plane = plane

        return Handler


class _UnixServer(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True
    request_queue_size = 64


class _TcpServer(socketserver.ThreadingMixIn, socketserver.TCPServer):
    daemon_threads = True
    request_queue_size = 64


@contextmanager
def _running(server: socketserver.BaseServer) -> Iterator[None]:
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    data_plane: FakeDataPlane

    def do_GET(self) -> None:
        plane = self.data_plane
        models = [{"id": name, "max_model_len": plane.max_model_len} for name in plane.models]
        self._send("application/json", json.dumps({"object": "list", "data": models}))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.data_plane.enter(body, self.headers["authorization"])
        try:
            if self.data_plane.status != 200:
                self._send("application/json", json.dumps({"error": self.data_plane.error}))
                return
            self._send(
                "text/event-stream", "".join(f"{x}\n\n" for x in self.data_plane.answer(body))
            )
        finally:
            self.data_plane.leave()

    def _send(self, content_type: str, text: str) -> None:
        is_model_list = self.command == "GET"
        self.send_response(200 if is_model_list else self.data_plane.status)
        self.send_header("content-type", content_type)
        self.end_headers()
        self.wfile.write(text.encode())

    def address_string(self) -> str:
        return "client"

    def log_message(self, *_: object) -> None:
        """Stay quiet."""
