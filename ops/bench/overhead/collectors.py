"""Collectors for measurements, each in a process of its own: one takes all, one never answers."""

import multiprocessing
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.connection import Connection

WATCH_S = 0.2


@contextmanager
def collector(serve: Callable[[Connection], None]) -> Iterator[str]:
    """Run `take_all` or `stall` and give its base URL."""
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=serve, args=(theirs,), daemon=True)
    process.start()
    try:
        yield f"http://127.0.0.1:{ours.recv()}"
    finally:
        process.terminate()
        process.join()


def take_all(port: Connection) -> None:
    """Answer 200 to everything and keep nothing, until the parent is gone."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    port.send(server.server_port)
    _wait_for_parent()


def stall(port: Connection) -> None:
    """Accept connections, take what comes and never answer, until the parent is gone."""
    listener = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=_swallow, args=(listener,), daemon=True).start()
    port.send(listener.getsockname()[1])
    _wait_for_parent()


def _swallow(listener: socket.socket) -> None:
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=_read_all, args=(connection,), daemon=True).start()


def _read_all(connection: socket.socket) -> None:
    with connection:
        while connection.recv(65536):
            pass


def _wait_for_parent() -> None:
    parent = os.getppid()
    while os.getppid() == parent:
        time.sleep(WATCH_S)
