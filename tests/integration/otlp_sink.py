"""An OTLP/HTTP receiver on opentelemetry-proto, for tests."""

import gzip
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span


class OtlpSink:
    """Listens on a loopback port and keeps every span with its resource attributes."""

    def __init__(self) -> None:
        sink = self
        self.spans: list[tuple[dict[str, str], Span]] = []
        self._lock = threading.Lock()

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if self.headers.get("content-encoding") == "gzip":
                    body = gzip.decompress(body)
                sink._take(ExportTraceServiceRequest.FromString(body))
                self.send_response(200)
                self.send_header("content-type", "application/x-protobuf")
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def _take(self, request: ExportTraceServiceRequest) -> None:
        with self._lock:
            for group in request.resource_spans:
                resource = {a.key: a.value.string_value for a in group.resource.attributes}
                for scope in group.scope_spans:
                    self.spans.extend((resource, span) for span in scope.spans)

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
