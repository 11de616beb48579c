"""The waterfall of one request."""

import asyncio
from collections.abc import Iterable
from typing import ClassVar, Final

from textual import on
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.widget import Widget

from appliance.supervisor.admin.schemas import EngineRow, RequestRow, Trace
from dashboard.action import TRACE
from dashboard.client.problems import ApiProblem, UnreachableError
from dashboard.screens.console import bindings_of
from dashboard.screens.operator import OperatorScreen
from dashboard.session import Session
from dashboard.store.state import LIVE_STATES
from dashboard.verbs import problem_note
from dashboard.view.explain import Reason, Why, against, excess, is_of_phase, unexplained
from dashboard.view.lines import WARN, Line, Piece, Row, line
from dashboard.view.text import short_id
from dashboard.view.topbar import crumb_line
from dashboard.view.trace import (
    attribute_lines,
    completeness,
    crumbs,
    facts,
    headline,
    is_final,
    outcome,
    pending,
    phase_lines,
)
from dashboard.view.tree import Node
from dashboard.view.waterfall import CRITICAL, WIDE, Waterfall
from dashboard.widgets.listing import Listing, Panel

POLL_S: Final = 0.5
_FRAME: Final = 2
_LEAST_WHY: Final = 4
_MOST_WHY: Final = 10
"""Rows of the explanation's box on a short screen: the waterfall shall stay in sight."""
_TALL: Final = 36
_EXPLAIN_TRIES: Final = 4
_PATIENCE: Final = 20
"""Polls after the request ended before an absent or incomplete trace is taken as it is."""


class TraceScreen(OperatorScreen):
    """Spans as a tree with bars on a time axis; the selected one in detail below."""

    NAME: ClassVar[str] = TRACE
    BINDINGS: ClassVar[list[BindingType]] = [
        *bindings_of(TRACE),
        Binding("right,l", "unfold(True)", show=False),
        Binding("left,h", "unfold(False)", show=False),
    ]

    def __init__(self, session: Session, request_id: str) -> None:
        super().__init__(session)
        self._request_id = request_id
        self._trace: Trace | None = None
        self._absent = ""
        self._reason = Reason()
        self._shows_why = True
        self._toggled: frozenset[str] = frozenset()
        self._linear = False

    def body(self) -> Iterable[Widget]:
        """Headline, waterfall; below it why, where the time went, and the selected span."""
        yield Panel(id="headline")
        yield Listing(id="waterfall", classes="box")
        yield Horizontal(
            Listing(id="why", classes="box"),
            Panel(id="phases", classes="box"),
            Panel(id="attributes", classes="box"),
            id="detail",
        )

    def on_mount(self) -> None:
        """Begin to load."""
        super().on_mount()
        self.query_one("#waterfall").focus()
        self.run_worker(self._load(), exclusive=True, exit_on_error=False)

    async def _load(self) -> None:
        """Fetch until the trace will not change any more."""
        patience = _PATIENCE
        while patience:
            await self._fetch()
            self.paint()
            if self._trace and is_final(self._trace, LIVE_STATES):
                break
            request = self.selected_request()
            is_live = request is not None and request.state in LIVE_STATES
            patience -= 0 if is_live else 1
            if self._trace and not is_live and self._reason.answer is None:
                self._reason = await self._ask_why()  # some messages may never come
                self.paint()
            await asyncio.sleep(POLL_S)
        if self._trace is None:
            self._absent = self._absent or "no trace is kept of this request"
            self.paint()
            return
        await self._explain()

    async def _explain(self) -> None:
        """Ask why it took so long, once it has ended; what was just stored may need a moment."""
        if self._reason.answer is not None and self._reason.answer.complete:
            return
        for _ in range(_EXPLAIN_TRIES):
            self._reason = await self._ask_why()
            self.paint()
            if self._reason.is_final:
                return
            await asyncio.sleep(POLL_S)

    async def _ask_why(self) -> Reason:
        try:
            return Reason(await self.session.source.insight.explanation(self._request_id))
        except (ApiProblem, UnreachableError) as error:
            return unexplained(error)

    async def _fetch(self) -> None:
        try:
            self._trace = await self.session.source.trace(self._request_id)
        except (ApiProblem, UnreachableError) as error:
            if not isinstance(error, ApiProblem) or error.status != _NOT_FOUND:
                self._absent = problem_note(error).text

    def top(self) -> Line:
        """Path and outcome."""
        session, width = self.session, self.size.width
        request = self.selected_request()
        if request is None:
            path, end = f"requests / {short_id(self._request_id)}", Piece("")
        else:
            path, end = crumbs(request, wide=width >= WIDE), outcome(request)
        return crumb_line(session.state, path, end, session.now_s(), width)

    def paint_body(self) -> None:
        """Draw waterfall and detail, or why there is none yet."""
        panel = self.query_one("#waterfall", Listing)
        if self._trace is None:
            text = line(Piece(f" {self._absent}", WARN if self._absent else ""))
            self.query_one("#headline", Panel).show([text])
            panel.fill((), [Row("", pending(self.selected_request(), self._request_id))])
            return
        trace = self._trace
        self.query_one("#headline", Panel).show([headline(trace)])
        width = panel.content_size.width
        why = self._reason.rows(self._why_width())
        waterfall = self._waterfall(trace, width, why)
        panel.fill(waterfall.header(), waterfall.rows(self._toggled))
        position = panel.position()
        whole = self._whole(trace)
        panel.entitle(facts(trace.request), f"{whole} · {position}" if position else whole)
        self._paint_why(why)
        self._paint_detail(trace, waterfall)

    def _whole(self, trace: Trace) -> str:
        critical = f" · {CRITICAL} critical path" if self._reason.critical else ""
        return f"{completeness(trace, wide=self.size.width >= WIDE)}{critical}"

    def _waterfall(self, trace: Trace, width: int, why: Why) -> Waterfall:
        marked = self._marked(trace, why) if self._shows_why else frozenset[str]()
        return Waterfall(
            trace, width, linear=self._linear, critical=self._reason.critical, marked=marked
        )

    def _marked(self, trace: Trace, why: Why) -> frozenset[str]:
        """The spans that the selected row of the explanation is about."""
        key = self.query_one("#why", Listing).selected or ""
        phase = why.phases.get(key)
        if phase is None:
            return why.spans.get(key, frozenset())
        return frozenset(span.span_id for span in trace.spans if is_of_phase(span.name, phase))

    def _why_width(self) -> int:
        return max(20, self.query_one("#why", Listing).content_size.width - 1)

    def _paint_why(self, why: Why) -> None:
        detail = self.query_one("#detail")
        detail.set_class(self._shows_why, "-why")
        height = min(max(_LEAST_WHY, len(why.rows) + _FRAME), _MOST_WHY)
        short = self._shows_why and self.size.height < _TALL
        detail.styles.height = height if short else None
        if not self._shows_why:
            return
        listing, answer = self.query_one("#why", Listing), self._reason.answer
        listing.fill((), why.rows)
        listing.entitle(excess(answer) if answer else "why", against(answer) if answer else "")

    def _paint_detail(self, trace: Trace, waterfall: Waterfall) -> None:
        attributes = self.query_one("#attributes", Panel)
        node = self._selected_node(waterfall)
        start_ns = min((span.start_ns for span in trace.spans), default=0)
        attributes.show(attribute_lines(node, start_ns, attributes.content_size.width))
        attributes.entitle(node.label if node else "")
        phases = self.query_one("#phases", Panel)
        if phases.display:
            phases.show(phase_lines(waterfall.phases(), phases.content_size.width))
            phases.entitle("where the time went")

    def _selected_node(self, waterfall: Waterfall) -> Node | None:
        key = self.query_one("#waterfall", Listing).selected
        rows = waterfall.shown(self._toggled)
        return next((shown.node for shown in rows if shown.node.key == key), None)

    def selected_request(self) -> RequestRow | None:
        """The request of this trace."""
        known = self.session.request(self._request_id)
        if self._trace is None:
            return known
        ended = self._trace.request.state not in LIVE_STATES
        return self._trace.request if ended or known is None else known

    def selected_engine(self) -> EngineRow | None:
        """The engine that it ran on."""
        request = self.selected_request()
        return self.session.engine(request.engine) if request else None

    @on(Listing.Moved)
    def _moved(self, event: Listing.Moved) -> None:
        if event.listing.id == "why":
            self._point()
        self.paint()

    def _point(self) -> None:
        """Bring the spans of the selected cause into view."""
        if self._trace is None:
            return
        why = self._reason.rows(self._why_width())
        waterfall = Waterfall(self._trace, self.size.width)
        key = waterfall.find(self._marked(self._trace, why), self._toggled)
        if key is not None:
            self.query_one("#waterfall", Listing).select(key)

    @on(Listing.Opened)
    def _opened(self) -> None:
        self.action_fold()

    def action_fold(self) -> None:
        """Open or close the selected row; from a cause, go to the span it points at."""
        if self.query_one("#why").has_focus:
            self.query_one("#waterfall").focus()
            return
        if key := self.query_one("#waterfall", Listing).selected:
            self._toggled ^= {key}
            self.paint()

    def action_unfold(self, want_open: bool) -> None:
        """Open or close the selected row, if it is not so already."""
        if self._trace is None:
            return
        waterfall = Waterfall(self._trace, self.size.width)
        key = self.query_one("#waterfall", Listing).selected
        for shown in waterfall.shown(self._toggled):
            if shown.node.key == key and shown.node.children and shown.is_open != want_open:
                self.action_fold()

    def action_why(self) -> None:
        """Show why it took so long, or the selected span instead."""
        self._shows_why = not self._shows_why
        if not self._shows_why:
            self.query_one("#waterfall").focus()
        self.paint()
        self.call_after_refresh(self.paint)  # the panels have other sizes then

    def action_axis(self) -> None:
        """Switch the scale."""
        self._linear = not self._linear
        self.paint()

    def action_back(self) -> None:
        """Back to where the trace was opened."""
        self.dismiss()


_NOT_FOUND: Final = 404
