"""Exports spans over OTLP/HTTP from a thread of its own, in small batches.

Spans become `ReadableSpan`s with the ids and times they have; no tracer is involved. A collector
that is slow or away costs spans, which are counted, and nothing else.
"""

import logging
import threading
from collections import deque
from collections.abc import Sequence

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, TraceFlags
from opentelemetry.trace.status import Status, StatusCode

from appliance.telemetry import names
from appliance.telemetry.span_data import SpanData
from appliance.telemetry.wall_clock import WallClock
from engine.wire.header import SAMPLED

logger = logging.getLogger(__name__)

MAX_QUEUED = 20_000
BATCH = 64
"""Encoding holds the interpreter for about 60 us per span."""
PAUSE_S = 0.005
BACKOFF_S = 1.0
TIMEOUT_S = 5.0
LEAVE_S = 0.2
"""What the thread gets to notice that it shall end."""
TRACES_PATH = "/v1/traces"
KINDS = {
    "internal": SpanKind.INTERNAL,
    "server": SpanKind.SERVER,
    "client": SpanKind.CLIENT,
    "producer": SpanKind.PRODUCER,
    "consumer": SpanKind.CONSUMER,
}

logging.getLogger("opentelemetry.exporter.otlp.proto.http").setLevel(logging.CRITICAL)


class SpanTranslator:
    """Turns our spans into OpenTelemetry's.

    Args:
        clock: Of the hub.
        version: Of the appliance.
        instance: Tells appliances apart; the process's name is added for `service.instance.id`.
    """

    def __init__(self, clock: WallClock, version: str, instance: str) -> None:
        self._clock = clock
        self._version = version
        self._instance = instance
        self._resources: dict[str, Resource] = {}
        self._scope = InstrumentationScope("quarterdeck.telemetry", version)
        self._unset = Status(StatusCode.UNSET)

    def translate(self, span: SpanData) -> ReadableSpan:
        """Build the span; all ids and times are given."""
        context = _context(span.trace_id, span.span_id, span.flags | SAMPLED)
        parent = None
        if span.parent_id is not None:
            parent = _context(span.trace_id, span.parent_id, span.flags | SAMPLED)
        return ReadableSpan(
            name=span.name,
            context=context,
            parent=parent,
            resource=self._resource(span.process),
            attributes=span.attributes,
            links=[
                Link(_context(link.context.trace_id, link.context.span_id, link.context.flags))
                for link in span.links
            ],
            kind=KINDS[span.kind],
            status=self._unset if span.error is None else Status(StatusCode.ERROR, span.error),
            start_time=self._clock.unix_ns(span.start_ns),
            end_time=self._clock.unix_ns(span.end_ns),
            instrumentation_scope=self._scope,
        )

    def _resource(self, process: str) -> Resource:
        resource = self._resources.get(process)
        if resource is None:
            resource = self._resources[process] = Resource(
                {
                    "service.name": names.SERVICE_NAME,
                    "service.version": self._version,
                    "service.instance.id": f"{self._instance}/{process}",
                    names.PROCESS: process,
                }
            )
        return resource


class SpanExport:
    """A bounded queue and the thread that empties it.

    Args:
        endpoint: Base URL of the collector, with or without `/v1/traces`.
        translator: Of the hub.
        max_queued: Spans that may wait; beyond, new ones are dropped and counted.
    """

    def __init__(
        self, endpoint: str, translator: SpanTranslator, max_queued: int = MAX_QUEUED
    ) -> None:
        url = endpoint.rstrip("/")
        self.endpoint = url if url.endswith(TRACES_PATH) else url + TRACES_PATH
        self.exported = 0
        self.failed = 0
        self.dropped = 0
        self.failing = False
        """Whether the collector refused the last batch."""
        self._translator = translator
        self._max_queued = max_queued
        self._queue: deque[SpanData] = deque()
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._exporter = OTLPSpanExporter(endpoint=self.endpoint, timeout=TIMEOUT_S)
        self._thread = threading.Thread(target=self._run, name="span-export", daemon=True)
        self._thread.start()

    def add(self, spans: Sequence[SpanData]) -> None:
        """Queue spans; never blocks."""
        room = self._max_queued - len(self._queue)
        self._queue.extend(spans[: max(0, room)])
        self.dropped += max(0, len(spans) - room)
        self._wake.set()

    def close(self, timeout_s: float) -> None:
        """Export what is queued, for at most that long. Blocks: call it in a thread.

        A collector that failed last is not asked again, and one that holds a request is left alone:
        the thread is a daemon, so neither keeps the process from ending.
        """
        self._stopping.set()
        self._wake.set()
        if not self.failing:
            self._thread.join(timeout_s)
        self._exporter.shutdown()  # ends its wait before another try
        self._thread.join(LEAVE_S)
        lost = self.failed + self.dropped + len(self._queue)
        if lost:
            logger.warning("%d spans did not reach %s", lost, self.endpoint)

    def _run(self) -> None:
        while not (self._stopping.is_set() and (self.failing or not self._queue)):
            batch = self._take()
            if not batch:
                self._wake.wait()
                self._wake.clear()
                continue
            self._export(batch)
            self._stopping.wait(BACKOFF_S if self.failing else PAUSE_S)
        self.failed += len(self._queue)
        self._queue.clear()

    def _take(self) -> list[SpanData]:
        return [self._queue.popleft() for _ in range(min(BATCH, len(self._queue)))]

    def _export(self, batch: list[SpanData]) -> None:
        try:
            result = self._exporter.export([self._translator.translate(span) for span in batch])
        except Exception:  # a span that cannot be translated must not end the thread
            logger.exception("a batch of %d spans could not be exported", len(batch))
            result = SpanExportResult.FAILURE
        self.failing = result is not SpanExportResult.SUCCESS
        if self.failing:
            self.failed += len(batch)
        else:
            self.exported += len(batch)


def _context(trace_id: str, span_id: str, flags: int) -> SpanContext:
    return SpanContext(
        trace_id=int(trace_id, 16),
        span_id=int(span_id, 16),
        is_remote=False,
        trace_flags=TraceFlags(flags),
    )
