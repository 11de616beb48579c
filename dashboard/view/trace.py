"""The text around a waterfall: what request it is, why it was slow, what a span carries."""

from collections.abc import Sequence
from typing import Any, Final

from appliance.supervisor.admin.schemas import RequestRow, Trace
from dashboard.view.lines import DIM, GOOD, INFO, WARN, Line, Piece, fit, line
from dashboard.view.requests import LOOKS
from dashboard.view.text import NOTHING, clean, count, meter, milliseconds, rate, short_id
from dashboard.view.tree import NS_PER_MS, Node, duration_ms
from dashboard.view.waterfall import number

_VALUE_LIMIT: Final = 200
_KEY_WIDTH: Final = 30
_TWO_COLUMNS_FROM: Final = 100


def crumbs(request: RequestRow, *, wide: bool) -> str:
    """The path to this screen and whose request it is."""
    trace_id = clean(request.trace_id)
    trace_id = trace_id if wide else f"{trace_id[:8]}…"
    who = f"  key {clean(request.key_id)}" if request.key_id and wide else ""
    model = f"  {clean(request.model or NOTHING)}@{clean(request.engine or NOTHING)}"
    name = clean(request.id) if wide else short_id(request.id)
    return f"requests / {name}  trace {trace_id}{who}{model}"


def outcome(request: RequestRow) -> Piece:
    """How it ended."""
    glyph, word, tone = LOOKS[request.state]
    tone = GOOD if request.state == "finished" else tone
    code = f" {clean(request.error_code)}" if request.error_code else ""
    status = f" {request.status}" if request.status else ""
    return Piece(f"{glyph}{status} {word.lower()}{code}", tone)


def facts(request: RequestRow) -> str:
    """The numbers of the request."""
    parts = [
        f"in {count(request.prompt_tokens)}",
        f"out {count(request.completion_tokens)}",
        f"TTFT {milliseconds(request.ttft_ms)}",
        f"queue {milliseconds(request.queue_ms)}",
        f"{rate(request.tokens_per_s)} tok/s",
        f"total {milliseconds(request.age_s * 1000)}",
    ]
    if request.preemptions:
        parts.append(f"▲ {request.preemptions} preempted")
    return " · ".join(parts)


def completeness(trace: Trace, *, wide: bool = True) -> str:
    """Whether both halves of every message were seen."""
    spans = f"{len(trace.spans)} spans"
    if trace.complete:
        return f"{spans} · ✓ complete{': every message has both halves' if wide else ''}"
    return f"{spans} · ▲ incomplete{': a message lacks a half' if wide else ''}"


def headline(trace: Trace) -> Line:
    """Why it was fast or slow."""
    return line(Piece(f" {clean(trace.headline)}", "bold"))


def phase_lines(phases: Sequence[tuple[str, float]], width: int) -> list[Line]:
    """Where the time went, longest first."""
    total_ms = sum(own_ms for _, own_ms in phases) or 1.0
    bar_width = max(6, width - 46)
    return [
        line(
            f" {fit(clean(label), 26)}",
            f"{number(own_ms):>9} ms",
            f"{100 * own_ms / total_ms:>4.0f}% ",
            Piece(meter(own_ms / total_ms, bar_width), INFO),
        )
        for label, own_ms in phases
    ]


def attribute_lines(node: Node | None, root_start_ns: int, width: int) -> list[Line]:
    """Facts and attributes of the selected row, in two columns if there is room."""
    if node is None:
        return []
    pairs = _message_facts(node) if node.is_group else _span_facts(node, root_start_ns)
    if width < _TWO_COLUMNS_FROM:
        return _two_columns(pairs, width)
    return [
        line(Piece(f" {fit(key, _KEY_WIDTH)} ", DIM), fit(value, width - _KEY_WIDTH - 3))
        for key, value in pairs
    ]


def _two_columns(pairs: list[tuple[str, str]], width: int) -> list[Line]:
    half = (width - 1) // 2
    lines: list[Line] = []
    for at in range(0, len(pairs), 2):
        pieces: list[Piece] = [Piece(" ")]
        for key, value in pairs[at : at + 2]:
            key_cells = min(len(key), half - 8)
            pieces.append(Piece(fit(key, key_cells) + " ", DIM))
            pieces.append(Piece(fit(value, half - key_cells - 2) + " "))
        lines.append(tuple(pieces))
    return lines


def _span_facts(node: Node, root_start_ns: int) -> list[tuple[str, str]]:
    span = node.span
    start_ms = (span.start_ns - root_start_ns) / NS_PER_MS
    facts = [
        ("at", f"+{number(start_ms)} ms"),
        ("takes", f"{number(duration_ms(span))} ms, itself {number(node.self_ms)} ms"),
        ("process", f"{clean(span.process)} ({span.kind})"),
        ("span", clean(span.span_id)),
    ]
    if span.status == "error":
        facts.append(("status", "✗ error"))
    attributes = sorted(span.attributes.items())
    return facts + [(clean(key), _value(value)) for key, value in attributes]


def _value(value: Any) -> str:
    return clean(str(value), _VALUE_LIMIT)


def _message_facts(node: Node) -> list[tuple[str, str]]:
    lengths = sorted(duration_ms(span) for span in node.spans)
    return [
        ("messages", node.label),
        ("spans", str(len(node.spans))),
        ("median", f"{number(_quantile(lengths, 0.5))} ms"),
        ("p95", f"{number(_quantile(lengths, 0.95))} ms"),
        ("longest", f"{number(lengths[-1])} ms"),
        ("open", "enter or → shows each message"),
    ]


def _quantile(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def is_final(trace: Trace, live_states: frozenset[str]) -> bool:
    """Whether the trace will not change any more."""
    return trace.complete and trace.request.state not in live_states


def pending(request: RequestRow | None, request_id: str) -> Line:
    """Shown until there is a trace."""
    if request is None:
        return line(Piece(f" looking for {short_id(request_id)} …", WARN))
    glyph, word, tone = LOOKS[request.state]
    tokens = f"{count(request.completion_tokens)} tokens so far"
    return line(Piece(f" {glyph} {word}", tone), f"  {tokens}; the trace comes when it ends")
