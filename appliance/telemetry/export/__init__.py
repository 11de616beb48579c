"""Export of spans to an OpenTelemetry collector, over OTLP/HTTP or OTLP/gRPC."""
