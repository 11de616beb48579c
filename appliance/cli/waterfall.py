"""Draws the spans of one request as bars under each other. Takes a trace, returns lines."""

from collections import defaultdict
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, field
from statistics import median

from appliance.cli.output import printable
from appliance.supervisor.admin.schemas import Cause, Explanation, Span, Trace
from appliance.trace_formats.critical_path import critical_path

_PROCESS_COLUMNS = 10
_TIME_COLUMNS = 9
_NAME_SHARE = 0.42
_NS_PER_US, _NS_PER_MS, _NS_PER_S = 1e3, 1e6, 1e9
_LEAF, _PARENT, _TICK = "█", "░", "▏"
_CRITICAL = "•"
"""Stands behind a span that the request's time depended on."""
_SLOW_RATIO = 2.0
_MAX_CAUSES = 3
_RED, _DIM, _CYAN, _GREEN, _PLAIN = "\x1b[31m", "\x1b[2m", "\x1b[36m", "\x1b[32m", "\x1b[0m"


@dataclass(slots=True)
class _Row:
    """One line: a span, or all the output messages below one span."""

    depth: int
    name: str
    process: str
    spans: list[Span]
    is_leaf: bool = True
    time: str = ""
    has_failed: bool = False
    is_critical: bool = False


@dataclass(slots=True)
class _Axis:
    """Maps times of the request to columns."""

    start_ns: int
    end_ns: int
    columns: int

    def column(self, at_ns: int) -> int:
        length_ns = max(self.end_ns - self.start_ns, 1)
        column = (at_ns - self.start_ns) * self.columns // length_ns
        return min(max(column, 0), self.columns - 1)


@dataclass(slots=True)
class _Tree:
    """The spans by parent; linked ones apart, since they fold into one row."""

    children: defaultdict[str | None, list[Span]] = field(default_factory=lambda: defaultdict(list))
    outputs: defaultdict[str | None, list[Span]] = field(default_factory=lambda: defaultdict(list))


def draw(
    trace: Trace, columns: int, why: Explanation | None = None, *, colour: bool = False
) -> list[str]:
    """Return the headline, a line about the request, an axis, a line for each row, and the reasons.

    Args:
        trace: The request's.
        columns: Width of the terminal.
        why: Its explanation, if there is one.
        colour: Whether colours are welcome.
    """
    lines = [printable(trace.headline), printable(_about(trace))]
    if not trace.spans:
        return [*lines, "no spans"]
    lines += draw_spans(trace.spans, columns, colour=colour)
    return lines if why is None else [*lines, "", *reasons(why)]


def draw_spans(spans: Sequence[Span], columns: int, *, colour: bool = False) -> list[str]:
    """Return an axis and a line for each row of one tree, the root first."""
    root = spans[0]
    name_columns = int(columns * _NAME_SHARE)
    bar_columns = columns - name_columns - _PROCESS_COLUMNS - _TIME_COLUMNS - 4
    axis = _Axis(root.start_ns, root.end_ns, bar_columns)
    critical = {part.span.span_id for part in critical_path(spans)}
    rows = _rows(spans, critical)
    return [
        _axis_line(axis, name_columns + _PROCESS_COLUMNS + 1),
        *(_line(row, axis, name_columns, colour=colour) for row in rows),
    ]


def reasons(why: Explanation) -> list[str]:
    """Return the verdict, its causes, and the phases that took longer than those of others."""
    lines = [printable(why.verdict)]
    for cause in why.causes[:_MAX_CAUSES]:
        lines.append(printable(f"  {cause.cost_ms:7.0f} ms  {cause.text} ({cause.confidence})"))
        lines += [printable(f"              {text}") for text in told(cause)]
        if cause.advice:
            lines.append(printable(f"              → {cause.advice}"))
    slow = [
        f"{phase.phase} {duration(phase.ms * _NS_PER_MS)} is {phase.ratio:.1f}x the median"
        for phase in why.phases
        if phase.ratio is not None and phase.ratio >= _SLOW_RATIO
    ]
    if slow:
        lines.append(printable(f"against {why.cohort}: {', '.join(slow)}"))
    return lines


def told(cause: Cause) -> Iterator[str]:
    """Yield each fact of the evidence with its value and what is usual, neither said twice."""
    for fact in cause.evidence:
        says_value = fact.value is None or any(character.isdigit() for character in fact.text)
        text = "" if fact.text == cause.text else fact.text
        if text and not says_value:
            text += f": {_amount(fact.value, fact.unit, fact.text)}"
        if fact.cohort_median is not None:
            usual = f"usually {_amount(fact.cohort_median, fact.unit, fact.text)}"
            text = f"{text} ({usual})" if text else usual
        if text:
            yield text


def _amount(value: float | None, unit: str | None, beside: str) -> str:
    """Return a value with its unit, which the text beside it may have named."""
    if unit == "ms":
        return duration((value or 0.0) * _NS_PER_MS)
    return f"{value:,.10g}" + (f" {unit}" if unit and unit not in beside else "")


def _about(trace: Trace) -> str:
    request = trace.request
    parts = [
        request.id,
        request.model or request.route,
        request.state if request.status is None else f"{request.state} {request.status}",
        f"{request.prompt_tokens} tokens in, {request.completion_tokens} out",
    ]
    return " · ".join(parts)


def _rows(spans: Sequence[Span], critical: Set[str]) -> Iterator[_Row]:
    tree = _Tree()
    phase_of: dict[str, str | None] = {}
    for span in spans:
        if not span.linked:
            tree.children[span.parent_id].append(span)
            continue
        phase = phase_of.get(span.parent_id or "", span.parent_id)
        phase_of[span.span_id] = phase
        tree.outputs[phase].append(span)
    yield from _below(tree, None, 0, critical)


def _below(tree: _Tree, parent_id: str | None, depth: int, critical: Set[str]) -> Iterator[_Row]:
    for span in tree.children.pop(parent_id, []):
        yield _Row(
            depth=depth,
            name=span.name,
            process=span.process,
            spans=[span],
            is_leaf=span.span_id not in tree.children,
            time=duration(span.end_ns - span.start_ns),
            has_failed=span.status == "error",
            is_critical=span.span_id in critical,
        )
        yield from _below(tree, span.span_id, depth + 1, critical)
    if outputs := tree.outputs.pop(parent_id, []):
        yield _folded(outputs, depth)


def _folded(outputs: list[Span], depth: int) -> _Row:
    sent = {span.span_id: span for span in outputs if span.kind == "producer"}
    hops_ns = [
        span.end_ns - sent[span.parent_id].start_ns for span in outputs if span.parent_id in sent
    ]
    return _Row(
        depth=depth,
        name=f"{len(sent)} output message{'' if len(sent) == 1 else 's'}",
        process=outputs[0].process,
        spans=list(sent.values()),
        time=f"~{duration(median(hops_ns))}" if hops_ns else "",
        has_failed=any(span.status == "error" for span in outputs),
    )


def _line(row: _Row, axis: _Axis, name_columns: int, *, colour: bool) -> str:
    name = _cut("  " * row.depth + printable(row.name), name_columns)
    process = _cut(printable(row.process), _PROCESS_COLUMNS)
    bar = _bar(row, axis)
    if colour:
        bar = f"{_colour(row)}{bar}{_PLAIN}"
    mark = _CRITICAL if row.is_critical else ""
    return f"{name}{process} {bar} {row.time:>{_TIME_COLUMNS}} {mark}".rstrip()


def _bar(row: _Row, axis: _Axis) -> str:
    cells = [" "] * axis.columns
    is_folded = len(row.spans) != 1
    for span in row.spans:
        first = axis.column(span.start_ns)
        last = first if is_folded else max(axis.column(span.end_ns - 1), first)
        mark = _TICK if is_folded else _LEAF if row.is_leaf else _PARENT
        cells[first : last + 1] = mark * (last + 1 - first)
    return "".join(cells)


def _colour(row: _Row) -> str:
    if row.has_failed:
        return _RED
    if not row.is_leaf:
        return _DIM
    return _CYAN if row.process.startswith("gateway") else _GREEN


def _axis_line(axis: _Axis, left: int) -> str:
    end = duration(axis.end_ns - axis.start_ns)
    return f"{_CRITICAL} on the critical path".ljust(left) + "0" + end.rjust(axis.columns - 1)


def _cut(text: str, columns: int) -> str:
    return text.ljust(columns) if len(text) < columns else text[: columns - 2] + "… "


def duration(length_ns: float) -> str:
    """Return a duration in the unit that suits it: `87 µs`, `4.2 ms`, `412 ms`, `3.10 s`."""
    if length_ns < _NS_PER_MS:
        return f"{length_ns / _NS_PER_US:.0f} µs"
    if length_ns < _NS_PER_S:
        length_ms = length_ns / _NS_PER_MS
        return f"{length_ms:.1f} ms" if length_ms < 100 else f"{length_ms:.0f} ms"  # noqa: PLR2004
    return f"{length_ns / _NS_PER_S:.2f} s"
