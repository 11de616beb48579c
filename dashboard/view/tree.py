"""The spans of a request as a tree in which the linked messages of a parent fold into one row."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from appliance.supervisor.admin.schemas import Span

NS_PER_MS: Final = 1e6
_FOLD_FROM: Final = 2
_MAX_DEPTH: Final = 64


@dataclass(slots=True)
class Node:
    """One row: a span, or (`span` None) the folded messages of a parent."""

    key: str
    label: str
    spans: tuple[Span, ...]
    """The span, or all those that are folded."""
    is_group: bool = False
    self_ms: float = 0.0
    children: list["Node"] = field(default_factory=list["Node"])

    @property
    def span(self) -> Span:
        """The span, or the first of the folded ones."""
        return self.spans[0]


@dataclass(frozen=True, slots=True)
class Shown:
    """A row that is open to view."""

    node: Node
    depth: int
    is_open: bool


def build_tree(spans: Sequence[Span]) -> Node | None:
    """Return the root with all spans below it; None without spans.

    A span whose parent is unknown hangs below the root, so that it is seen; what is nested deeper
    than 64 levels is not.
    """
    if not spans:
        return None
    known = {span.span_id for span in spans}
    root = next((span for span in spans if span.parent_id not in known), spans[0])
    children: dict[str, list[Span]] = defaultdict(list)
    for span in spans:
        if span is not root:
            parent = span.parent_id if span.parent_id in known else root.span_id
            children[parent or root.span_id].append(span)
    tree = _node(root, children, {root.span_id}, 0)
    tree.key = "root"  # a running request gets a new span id with each answer
    return tree


def _node(span: Span, children: dict[str, list[Span]], seen: set[str], depth: int) -> Node:
    mine = [child for child in children[span.span_id] if child.span_id not in seen]
    seen.update(child.span_id for child in mine)
    mine.sort(key=lambda child: (child.start_ns, child.end_ns))
    nodes = (
        [_node(child, children, seen, depth + 1) for child in mine] if depth < _MAX_DEPTH else []
    )
    self_ms = _self_ms(span, [child for child in mine if not child.linked])
    return Node(span.span_id, span.name, (span,), self_ms=self_ms, children=_folded(span, nodes))


def _folded(parent: Span, nodes: list[Node]) -> list[Node]:
    """Put the token messages of `nodes` into one group, where the first of them stood."""
    linked = [node for node in nodes if _is_foldable(node.span)]
    if _is_foldable(parent) or len(linked) < _FOLD_FROM:
        return nodes
    spans = tuple(span for node in linked for span in _all_spans(node))
    sent = sum(span.kind == "producer" for span in spans) or len(linked)
    group = Node(
        f"messages:{parent.span_id}",
        f"{sent} output messages",
        spans,
        is_group=True,
        self_ms=sum((span.end_ns - span.start_ns) / NS_PER_MS for span in spans),
        children=linked,
    )
    at = nodes.index(linked[0])
    before = [node for node in nodes[:at] if not _is_foldable(node.span)]
    after = [node for node in nodes[at:] if not _is_foldable(node.span)]
    return [*before, group, *after]


def _is_foldable(span: Span) -> bool:
    """One of the many messages that carry tokens; while a request runs they are not linked yet."""
    is_message = span.kind in ("producer", "consumer")
    return span.linked or (is_message and span.name.endswith("EngineOutputs"))


def _all_spans(node: Node) -> Iterator[Span]:
    yield from node.spans
    for child in node.children:
        yield from _all_spans(child)


def _self_ms(span: Span, children: Sequence[Span]) -> float:
    """Duration less what the children cover; they are sorted by start."""
    covered, until = 0, span.start_ns
    for child in children:
        start, end = max(child.start_ns, until), min(child.end_ns, span.end_ns)
        if end > start:
            covered += end - start
            until = end
    return max(0, span.end_ns - span.start_ns - covered) / NS_PER_MS


def shown_rows(root: Node | None, toggled: frozenset[str]) -> list[Shown]:
    """The rows in order. Spans are open and folded messages closed, unless `toggled`."""
    return [] if root is None else list(_walk(root, 0, toggled))


def _walk(node: Node, depth: int, toggled: frozenset[str]) -> Iterator[Shown]:
    is_open = bool(node.children) and (node.is_group == (node.key in toggled))
    yield Shown(node, depth, is_open)
    if is_open:
        for child in node.children:
            yield from _walk(child, depth + 1, toggled)


def duration_ms(span: Span) -> float:
    """Length of a span."""
    return (span.end_ns - span.start_ns) / NS_PER_MS
