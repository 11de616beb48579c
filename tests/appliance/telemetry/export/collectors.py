"""Collectors that speak real OTLP and can be told to misbehave."""

import contextlib
import gzip
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTracePartialSuccess,
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span


@dataclass
class Received:
    """What a collector got, whatever it answered."""

    requests: list[ExportTraceServiceRequest] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)

    @property
    def spans(self) -> list[Span]:
        return [
            span
            for request in list(self.requests)
            for group in request.resource_spans
            for scope in group.scope_spans
            for span in scope.spans
        ]

    @property
    def sizes(self) -> list[int]:
        """Spans of each request."""
        return [
            sum(len(scope.spans) for group in request.resource_spans for scope in group.scope_spans)
            for request in self.requests
        ]


@dataclass(frozen=True)
class Answer:
    """How the next request over HTTP is answered."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    cut: bool = False
    """Close the connection instead."""
    hang: bool = False
    """Keep it without an answer until the collector ends."""
    drip_s: float = 0.0
    """Send a byte of the answer's header each so many seconds, without an end."""


def partial_success(rejected: int, message: str) -> ExportTraceServiceResponse:
    partial = ExportTracePartialSuccess(rejected_spans=rejected, error_message=message)
    return ExportTraceServiceResponse(partial_success=partial)


class HttpCollector(ThreadingHTTPServer):
    """Answers as scripted, then well."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.received = Received()
        self.answers: list[Answer] = []
        self.always: Answer | None = None
        """What it answers once the script is over; None: 200."""
        self.ended = threading.Event()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that goes away is no error here."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: HttpCollector

    def do_POST(self) -> None:
        collector = self.server
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        collector.received.paths.append(self.path)
        collector.received.headers.append({k.lower(): v for k, v in self.headers.items()})
        collector.received.requests.append(ExportTraceServiceRequest.FromString(body))
        answer = collector.answers.pop(0) if collector.answers else collector.always or Answer()
        if answer.hang:
            collector.ended.wait(60)
        if answer.cut or answer.hang:
            self.close_connection = True
            return
        if answer.drip_s:
            self._drip(answer.drip_s)
            return
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(answer.body)))
        self.end_headers()
        self.wfile.write(answer.body)

    def _drip(self, pause_s: float) -> None:
        self.close_connection = True
        self.wfile.write(b"HTTP/1.1 200 OK\r\nx-slow: ")
        with contextlib.suppress(OSError):
            while not self.server.ended.wait(pause_s):
                self.wfile.write(b"a")
                self.wfile.flush()

    def log_message(self, *_: object) -> None:
        """Nothing."""


class GrpcCollector(trace_service_pb2_grpc.TraceServiceServicer):
    """Runs a callable on each request, which may abort it, then answers what that returns."""

    def __init__(self, address: str = "127.0.0.1:0") -> None:
        self.received = Received()
        self.reply: Callable[[grpc.ServicerContext], ExportTraceServiceResponse | None] = (
            lambda context: None
        )
        self.ended = threading.Event()
        self._server = grpc.server(ThreadPoolExecutor(4))
        trace_service_pb2_grpc.add_TraceServiceServicer_to_server(self, self._server)
        self.port = self._server.add_insecure_port(address)
        self._server.start()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def Export(  # noqa: N802 - the service's name
        self, request: ExportTraceServiceRequest, context: grpc.ServicerContext
    ) -> ExportTraceServiceResponse:
        self.received.requests.append(request)
        self.received.headers.append(dict(context.invocation_metadata()))
        return self.reply(context) or ExportTraceServiceResponse()

    def close(self) -> None:
        self.ended.set()
        self._server.stop(None).wait(5)


@contextlib.contextmanager
def http_collector() -> Iterator[HttpCollector]:
    server = HttpCollector()
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.ended.set()
        server.shutdown()
        server.server_close()
        thread.join(5)


@contextlib.contextmanager
def grpc_collector() -> Iterator[GrpcCollector]:
    collector = GrpcCollector()
    try:
        yield collector
    finally:
        collector.close()


@contextlib.contextmanager
def silent_listener() -> Iterator[int]:
    """A port that accepts connections and never says anything."""
    with socket.create_server(("127.0.0.1", 0), backlog=8) as listener:
        yield listener.getsockname()[1]


def free_port() -> int:
    """A port where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]
