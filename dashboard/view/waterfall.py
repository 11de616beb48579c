"""The waterfall of one request as lines: span tree, bars on a time axis, own time."""

from typing import Final

from appliance.supervisor.admin.schemas import Span, Trace
from dashboard.view.axis import Axis, axis_for
from dashboard.view.lines import (
    BAD,
    DIM,
    GOOD,
    INFO,
    PLAIN,
    REST,
    WARN,
    Line,
    Piece,
    Row,
    fit,
    line,
)
from dashboard.view.text import clean
from dashboard.view.tree import NS_PER_MS, Node, Shown, build_tree, duration_ms, shown_rows

WIDE: Final = 120
CRITICAL: Final = "┃"
POINTER: Final = "◂"
_SELF_WIDTH: Final = 8
_PERCENT_WIDTH: Final = 5
_PROCESS_WIDTH: Final = 11

_TONES: Final = {
    "auth": INFO,
    "admission": INFO,
    "tokenize": INFO,
    "dispatch": REST,
    "queue": WARN,
    "prefill": "magenta",
    "decode": GOOD,
    "stream": INFO,
}
"""By the first word of a span's name."""


class Waterfall:
    """One trace prepared for drawing.

    Args:
        trace: The spans.
        width: Cells for a whole row.
        linear: One scale all the way, instead of a compressed one after the first token.
        critical: Ids of the spans on the critical path; a heavy line stands before their bars.
        marked: Ids of spans to point at.
    """

    def __init__(
        self,
        trace: Trace,
        width: int,
        *,
        linear: bool = False,
        critical: frozenset[str] = frozenset(),
        marked: frozenset[str] = frozenset(),
    ) -> None:
        self._critical = critical
        self._marked = marked
        self._root = build_tree(trace.spans)
        self._wide = width >= WIDE
        self._name_width = 44 if self._wide else 27
        self.axis = self._axis(trace, width, linear=linear)

    def _axis(self, trace: Trace, width: int, *, linear: bool) -> Axis:
        used = 1 + self._name_width + 1 + 1 + _SELF_WIDTH + _PERCENT_WIDTH
        used += _PROCESS_WIDTH if self._wide else 0
        total_ms = duration_ms(self._root.span) if self._root else 0.0
        return axis_for(total_ms, trace.request.ttft_ms, max(8, width - used), linear=linear)

    def header(self) -> Line:
        """Titles and scale."""
        process = fit("process", _PROCESS_WIDTH) if self._wide else ""
        own = fit("self ms", _SELF_WIDTH, right=True) + fit("%", _PERCENT_WIDTH, right=True)
        return line(
            Piece(f" {fit('span', self._name_width)}{process}│", DIM),
            Piece(self.axis.scale(), DIM),
            Piece(f"│{own}", DIM),
        )

    def rows(self, toggled: frozenset[str]) -> list[Row]:
        """One row for each span or fold that is open to view."""
        return [Row(shown.node.key, self._line(shown)) for shown in self.shown(toggled)]

    def shown(self, toggled: frozenset[str]) -> list[Shown]:
        """The nodes behind `rows`."""
        return shown_rows(self._root, toggled)

    def _line(self, shown: Shown) -> Line:
        node = shown.node
        tone = _tone(node)
        faint = DIM if node.is_group or node.span.linked else PLAIN
        process = fit(clean(node.span.process), _PROCESS_WIDTH) if self._wide else ""
        is_critical = not node.is_group and node.span.span_id in self._critical
        return line(
            self._name(shown, BAD if _failed(node) else faint),
            Piece(process, DIM),
            Piece(CRITICAL, f"bold {WARN}") if is_critical else Piece("│", DIM),
            Piece(self._bar(node), tone),
            Piece("│", DIM),
            Piece(self._own(node), faint),
        )

    def _name(self, shown: Shown, tone: str) -> Piece:
        """The label; one that is pointed at ends in an arrow, which needs no colour."""
        label = _label(shown, 2 if self._wide else 1)
        if not any(span.span_id in self._marked for span in shown.node.spans):
            return Piece(fit(label, self._name_width), tone)
        return Piece(f"{fit(label, self._name_width - 2)}{POINTER} ", f"bold {WARN}")

    def find(self, wanted: frozenset[str], toggled: frozenset[str]) -> str | None:
        """Key of the first shown row that holds one of these spans."""
        for shown in self.shown(toggled):
            if any(span.span_id in wanted for span in shown.node.spans):
                return shown.node.key
        return None

    def _bar(self, node: Node) -> str:
        if node.is_group:
            return self.axis.ticks(self._at_ms(span.start_ns) for span in node.spans)
        return self.axis.bar(self._at_ms(node.span.start_ns), self._at_ms(node.span.end_ns))

    def _at_ms(self, at_ns: int) -> float:
        assert self._root is not None
        return (at_ns - self._root.span.start_ns) / NS_PER_MS

    def _own(self, node: Node) -> str:
        own = f"{number(node.self_ms):>{_SELF_WIDTH}}"
        if node.is_group or node.span.linked or not self.axis.total_ms:
            return own + " " * _PERCENT_WIDTH
        return own + f"{100 * node.self_ms / self.axis.total_ms:>{_PERCENT_WIDTH - 1}.0f}%"

    def phases(self) -> list[tuple[str, float]]:
        """Names and own milliseconds of what the request's time went to, longest first."""
        found = [
            (shown.node.label, shown.node.self_ms)
            for shown in self.shown(frozenset())
            if not shown.node.is_group and not shown.node.span.linked
        ]
        return sorted(found, key=lambda phase: phase[1], reverse=True)


def number(milliseconds: float) -> str:
    """Milliseconds with as many decimals as say something."""
    decimals = 2 if milliseconds < 1 else 1 if milliseconds < _THOUSAND else 0
    return f"{milliseconds:.{decimals}f}"


_THOUSAND: Final = 1000


def _label(shown: Shown, step: int) -> str:
    mark = " "
    if shown.node.children:
        mark = "▾" if shown.is_open else "▸"
    indent = " " * (step * min(shown.depth, _DEEP))
    return f"{indent}{mark}{clean(shown.node.label)}"


_DEEP: Final = 8


def _failed(node: Node) -> bool:
    return any(span.status == "error" for span in node.spans)


def _tone(node: Node) -> str:
    if _failed(node):
        return BAD
    if node.is_group or _is_message(node.span):
        return DIM
    return _TONES.get(node.span.name.split(" ", 1)[0], PLAIN)


def _is_message(span: Span) -> bool:
    return span.kind in ("producer", "consumer")
