"""Puts an export together: options, encoder, sender, thread."""

import os
from collections.abc import Mapping

from opentelemetry.sdk.resources import OTELResourceDetector, Resource

from appliance.config.otlp import OtlpOptions
from appliance.telemetry import names
from appliance.telemetry.export.http_sender import HttpSender
from appliance.telemetry.export.sender import Sender
from appliance.telemetry.export.span_encoder import SpanEncoder
from appliance.telemetry.export.span_export import ExportPace, SpanExport
from appliance.telemetry.span_data import AttributeValue
from appliance.telemetry.wall_clock import WallClock

SCOPE = "quarterdeck.telemetry"


def start_export(
    options: OtlpOptions,
    clock: WallClock,
    version: str,
    instance: str,
    pace: ExportPace | None = None,
) -> SpanExport:
    """Start to export.

    Args:
        options: Where to and how.
        clock: Of the hub.
        version: Of the appliance.
        instance: Tells appliances apart; `service.instance.id` is it and the process's name.
        pace: None: as in production.
    """
    resources = ProcessResources(version, instance)
    encoder = SpanEncoder(clock.offset_ns, resources.attributes, (SCOPE, version))
    return SpanExport(options, _sender(options), encoder, pace)


class ProcessResources:
    """The resource of each process; OTEL_RESOURCE_ATTRIBUTES and OTEL_SERVICE_NAME are heard."""

    def __init__(self, version: str, instance: str) -> None:
        self._instance = instance
        ours = Resource({"service.name": names.SERVICE_NAME, "service.version": version})
        self._shared = ours.merge(OTELResourceDetector().detect())

    def attributes(self, process: str) -> Mapping[str, AttributeValue]:
        """Return the attributes of a process's resource."""
        own = {"service.instance.id": f"{self._instance}/{process}", names.PROCESS: process}
        merged = self._shared.merge(Resource(own)).attributes
        return {key: str(value) for key, value in merged.items()}


def _sender(options: OtlpOptions) -> Sender:
    if options.protocol == "http/protobuf":
        return HttpSender(options)
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # or it writes to stderr, past our log
    # an extra that few installations have
    from appliance.telemetry.export.grpc_sender import GrpcSender  # noqa: PLC0415

    return GrpcSender(options)
