"""A request's trace in other shapes: OTLP JSON, Chrome trace events, a page of HTML. Pure."""
