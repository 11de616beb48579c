"""What the export of a span costs the supervisor: ways to encode it, and the whole way out.

    python ops/bench/span_encoding.py [--batch 64 256] [--rounds 40]

The spans are those of an engine's step with one request: the step, its message sent and taken.
Every round makes other ids, so nothing is encoded that was seen before. CPU time is that of the
exporting process; the collector is another one. Rounds of all ways take turns on the same spans.
"""

import argparse
import statistics
import time
from collections.abc import Callable

from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, TraceFlags
from overhead.collectors import collector, take_all

from appliance.config.otlp import otlp_options
from appliance.telemetry.export.http_sender import HttpSender
from appliance.telemetry.export.span_encoder import KINDS, SpanEncoder
from appliance.telemetry.span_data import SpanData
from engine.wire.header import new_context, new_span_id, new_trace_id
from engine.wire.hops import HopLink

MICROSECONDS = 1e6
SCOPE = ("quarterdeck.telemetry", "1")


def main() -> int:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batch", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--rounds", type=int, default=40)
    asked = parser.parse_args()
    print(f"{'BATCH':>6}  {'WAY':<34}{'US/SPAN MIN':>12}{'MEDIAN':>8}")
    with collector(take_all) as endpoint:
        for batch in asked.batch:
            for way, costs in measure(ways(endpoint), batch, asked.rounds).items():
                print(f"{batch:>6}  {way:<34}{min(costs):>12.1f}{statistics.median(costs):>8.1f}")
    return 0


def measure(
    each: dict[str, Callable[[list[SpanData]], object]], batch: int, rounds: int
) -> dict[str, list[float]]:
    """Return CPU microseconds per span of each round, by way."""
    costs: dict[str, list[float]] = {way: [] for way in each}
    for index in range(rounds):
        spans = some_spans(index * batch, batch)
        for way, run in each.items():
            begun_s = time.process_time()
            run(spans)
            costs[way].append((time.process_time() - begun_s) / batch * MICROSECONDS)
    return costs


def ways(endpoint: str) -> dict[str, Callable[[list[SpanData]], object]]:
    """Return the ways: three encoders alone, two with the sending."""
    encoder = SpanEncoder(0, resource_of, SCOPE)
    sender = HttpSender(otlp_options(endpoint, "http/protobuf", {}))
    exporter = OTLPSpanExporter(endpoint=f"{endpoint}/v1/traces")
    return {
        "SDK: ReadableSpan, encode": lambda spans: sdk_bytes([sdk_span(s) for s in spans]),
        "protobuf objects": protobuf_bytes,
        "own encoder": encoder.encode,
        "SDK: ReadableSpan, encode, send": lambda spans: exporter.export(
            [sdk_span(span) for span in spans]
        ),
        "own encoder, send": lambda spans: sender.send(encoder.encode(spans)),
    }


def some_spans(first: int, number: int) -> list[SpanData]:
    """Make the spans of steps, with ids of their own."""
    spans: list[SpanData] = []
    for index in range(first, first + (number + 2) // 3):
        spans += step_spans(index)
    return spans[:number]


def step_spans(index: int) -> list[SpanData]:
    """Make the span of a step, and those of the message that it sent."""
    step, send, at_ns = new_context(1), new_span_id(), 10**15 + index * 10**7
    link = HopLink(f"req-{new_trace_id()}", new_context(1))
    messaging = {
        "messaging.system": "zeromq",
        "messaging.message.id": f"e0-3-{index}",
        "messaging.message.conversation_id": link.request_id,
    }
    return [
        SpanData(
            trace_id=step.trace_id, span_id=step.span_id, parent_id=None, name="engine.step",
            kind="internal", process="e0", start_ns=at_ns, end_ns=at_ns + 9_000_000,
            attributes={
                "quarterdeck.engine": "e0", "quarterdeck.engine.epoch": 3,
                "quarterdeck.step": index, "quarterdeck.step.schedule_ns": 31_000 + index,
                "quarterdeck.step.execute_ns": 8_900_000 + index,
                "quarterdeck.step.update_ns": 70_000 - index,
                "quarterdeck.step.prefill_tokens": 0, "quarterdeck.step.decode_tokens": 8,
                "quarterdeck.step.requests": 8, "quarterdeck.step.used_blocks": 400 + index,
                "quarterdeck.step.preempted": 0,
            },
        ),
        SpanData(
            trace_id=step.trace_id, span_id=send, parent_id=step.span_id,
            name="send EngineOutputs", kind="producer", process="e0",
            start_ns=at_ns, end_ns=at_ns + 90_000, links=(link,),
            attributes=messaging | {
                "messaging.operation.name": "send", "messaging.operation.type": "send",
                "messaging.destination.name": "gateway-0",
                "messaging.message.envelope.size": 300 + index % 50,
            },
        ),
        SpanData(
            trace_id=step.trace_id, span_id=new_span_id(), parent_id=send,
            name="process EngineOutputs", kind="consumer", process="gateway-0",
            start_ns=at_ns + 200_000, end_ns=at_ns + 300_000, links=(link,),
            attributes=messaging | {
                "messaging.operation.name": "process", "messaging.operation.type": "process",
                "messaging.destination.name": "gateway-0",
                "quarterdeck.hop.transit_ns": 110_000 + index, "quarterdeck.hop.queued_ns": 4_000,
            },
        ),
    ]  # fmt: skip


def resource_of(process: str) -> dict[str, str]:
    """Return what a process is."""
    return {
        "service.name": "quarterdeck",
        "service.version": "1",
        "service.instance.id": f"here/{process}",
        "quarterdeck.process": process,
    }


RESOURCES = {process: Resource(resource_of(process)) for process in ("e0", "gateway-0")}
SDK_SCOPE = InstrumentationScope(*SCOPE)


def sdk_span(span: SpanData) -> ReadableSpan:
    """Return a span of the SDK's."""
    parent = None if span.parent_id is None else context_of(span.trace_id, span.parent_id)
    return ReadableSpan(
        name=span.name,
        context=context_of(span.trace_id, span.span_id),
        parent=parent,
        resource=RESOURCES[span.process],
        attributes=span.attributes,
        links=[
            Link(context_of(each.context.trace_id, each.context.span_id)) for each in span.links
        ],
        kind=SpanKind[span.kind.upper()],
        start_time=span.start_ns,
        end_time=span.end_ns,
        instrumentation_scope=SDK_SCOPE,
    )


def context_of(trace_id: str, span_id: str) -> SpanContext:
    """Return a position in a trace."""
    return SpanContext(int(trace_id, 16), int(span_id, 16), False, TraceFlags(1))


def sdk_bytes(spans: list[ReadableSpan]) -> bytes:
    """Encode as the SDK's exporters do."""
    return encode_spans(spans).SerializePartialToString()


def protobuf_bytes(spans: list[SpanData]) -> bytes:
    """Encode through the objects of opentelemetry-proto, filled from our structs."""
    request = ExportTraceServiceRequest()
    groups = {}
    for span in spans:
        if span.process not in groups:
            group = request.resource_spans.add()
            for key, value in resource_of(span.process).items():
                group.resource.attributes.add(key=key).value.string_value = value
            scope = group.scope_spans.add()
            scope.scope.name, scope.scope.version = SCOPE
            groups[span.process] = scope.spans
        encoded = groups[span.process].add(
            trace_id=bytes.fromhex(span.trace_id),
            span_id=bytes.fromhex(span.span_id),
            name=span.name,
            kind=KINDS[span.kind],
            start_time_unix_nano=span.start_ns,
            end_time_unix_nano=span.end_ns,
            flags=1,
        )
        if span.parent_id is not None:
            encoded.parent_span_id = bytes.fromhex(span.parent_id)
        for key, value in span.attributes.items():
            attribute = encoded.attributes.add(key=key)
            if isinstance(value, str):
                attribute.value.string_value = value
            else:
                attribute.value.int_value = value
        for link in span.links:
            context = link.context
            encoded.links.add(
                trace_id=bytes.fromhex(context.trace_id),
                span_id=bytes.fromhex(context.span_id),
                flags=context.flags,
            )
    return request.SerializeToString()


if __name__ == "__main__":
    raise SystemExit(main())
