"""An invented but well-formed trace of an invented request."""

from random import Random
from typing import Any, Literal

from appliance.supervisor.admin.schemas import RequestRow, Span, Trace

NS_PER_MS = 1_000_000


class _Builder:
    """Appends spans with ids that depend on the request only."""

    def __init__(self, request: RequestRow, gateway: str, engine: str) -> None:
        self.spans: list[Span] = []
        self._ids = Random(request.id)  # noqa: S311 - the same trace each time, no secret
        self._start_ns = int(request.received_at.timestamp() * 1e9)
        self._gateway = gateway
        self._engine = engine

    def add(
        self,
        name: str,
        parent: Span | None,
        span_ms: tuple[float, float],
        *,
        at_engine: bool = False,
        kind: Literal["internal", "server", "client", "producer", "consumer"] = "internal",
        attributes: dict[str, Any] | None = None,
    ) -> Span:
        """Append a span from and until milliseconds since the start of the request."""
        start_ms, end_ms = span_ms
        span = Span(
            name=name,
            kind=kind,
            process=self._engine if at_engine else self._gateway,
            start_ns=self._start_ns + round(start_ms * NS_PER_MS),
            end_ns=self._start_ns + round(end_ms * NS_PER_MS),
            span_id=f"{self._ids.getrandbits(64):016x}",
            parent_id=parent.span_id if parent else None,
            attributes=attributes or {},
        )
        self.spans.append(span)
        return span

    def jitter(self, low: float, high: float) -> float:
        """A number that depends on the request only."""
        return self._ids.uniform(low, high)


def demo_trace(request: RequestRow) -> Trace:
    """Return the trace of an ended request; its phases tile it."""
    build = _Builder(request, request.gateway, request.engine or "e0")
    total_ms = request.age_s * 1000
    queue_ms = request.queue_ms or 0.0
    ttft_ms = min(request.ttft_ms or total_ms, total_ms * 0.98)
    root = build.add(
        f"POST {request.route}",
        None,
        (0, total_ms),
        kind="server",
        attributes={
            "http.response.status_code": request.status,
            "quarterdeck.key.id": request.key_id,
        },
    )
    marks = [0.0, 0.3, 0.5, min(2.9, ttft_ms * 0.2)]
    for name, start, end in zip(("auth", "admission", "tokenize"), marks, marks[1:], strict=False):
        build.add(name, root, (start, end))
    chat = _chat(build, root, request, (marks[3], total_ms - 0.4))
    arrived = marks[3] + min(0.5, ttft_ms * 0.05)
    _dispatch(build, chat, (marks[3], arrived))
    scheduled = arrived + min(queue_ms, (ttft_ms - arrived) * 0.9)
    build.add("queue", chat, (arrived, scheduled), at_engine=True)
    _generate(build, chat, request, (scheduled, ttft_ms, total_ms - 0.6))
    build.add(
        "stream",
        root,
        (total_ms - 0.6, total_ms),
        attributes={"frames": request.completion_tokens + 2},
    )
    return Trace(
        request=request, headline=_headline(ttft_ms, queue_ms), spans=build.spans, complete=True
    )


def _chat(build: _Builder, root: Span, request: RequestRow, span_ms: tuple[float, float]) -> Span:
    return build.add(
        f"chat {request.model}",
        root,
        span_ms,
        kind="client",
        attributes={
            "gen_ai.operation.name": "chat",
            "gen_ai.request.model": request.model,
            "gen_ai.request.max_tokens": request.max_tokens,
            "gen_ai.usage.input_tokens": request.prompt_tokens,
            "gen_ai.usage.output_tokens": request.completion_tokens,
        },
    )


def _dispatch(build: _Builder, chat: Span, span_ms: tuple[float, float]) -> None:
    start, end = span_ms
    dispatch = build.add("dispatch", chat, span_ms)
    middle = start + (end - start) * 0.4
    sent = build.add(
        "send AddRequest",
        dispatch,
        (start, middle),
        kind="producer",
        attributes={"messaging.system": "zeromq"},
    )
    build.add("process AddRequest", sent, (middle, end), at_engine=True, kind="consumer")


def _generate(
    build: _Builder, chat: Span, request: RequestRow, marks_ms: tuple[float, float, float]
) -> None:
    scheduled, first, last = marks_ms
    build.add(
        "prefill",
        chat,
        (scheduled, first),
        at_engine=True,
        attributes={"prompt_tokens": request.prompt_tokens},
    )
    steps = max(1, request.completion_tokens)
    decode = build.add("decode", chat, (first, last), at_engine=True, attributes={"steps": steps})
    for step in range(steps):
        at = first + (last - first) * step / steps
        hop = build.jitter(0.12, 0.5)
        sent = build.add(
            "send EngineOutputs", decode, (at, at + hop / 2), at_engine=True, kind="producer"
        )
        read = build.add("process EngineOutputs", sent, (at + hop / 2, at + hop), kind="consumer")
        sent.linked = read.linked = True


def _headline(ttft_ms: float, queue_ms: float) -> str:
    share = 100 * queue_ms / ttft_ms if ttft_ms else 0.0
    if share > 25:  # noqa: PLR2004 - a quarter is worth a word
        return f"TTFT {ttft_ms:.0f} ms: {share:.0f} % queued, {ttft_ms / 95:.1f}x the recent median"
    return f"TTFT {ttft_ms:.0f} ms: mostly prefill, as usual"
