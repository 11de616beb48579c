"""The waterfall of one request."""

import asyncio
from collections.abc import Iterable
from typing import ClassVar, Final

from textual import on
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.widget import Widget

from appliance.supervisor.admin.schemas import EngineRow, RequestRow, Trace
from dashboard.actions import TRACE
from dashboard.client.problems import ApiProblem, UnreachableError
from dashboard.screens.console import ConsoleScreen, bindings_of
from dashboard.session import Session
from dashboard.store.state import LIVE_STATES
from dashboard.verbs import problem_note
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
from dashboard.view.waterfall import WIDE, Waterfall
from dashboard.widgets.listing import Listing, Panel

POLL_S: Final = 0.5
_PATIENCE: Final = 20
"""Polls after the request ended before an absent or incomplete trace is taken as it is."""


class TraceScreen(ConsoleScreen):
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
        self._toggled: frozenset[str] = frozenset()
        self._linear = False

    def body(self) -> Iterable[Widget]:
        """Headline, waterfall, detail."""
        yield Panel(id="headline")
        yield Listing(id="waterfall", classes="box")
        yield Horizontal(
            Panel(id="phases", classes="box"), Panel(id="attributes", classes="box"), id="detail"
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
                return
            request = self.selected_request()
            patience -= 0 if request and request.state in LIVE_STATES else 1
            await asyncio.sleep(POLL_S)
        if self._trace is None:
            self._absent = self._absent or "no trace is kept of this request"
            self.paint()

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
        waterfall = Waterfall(trace, panel.content_size.width, linear=self._linear)
        panel.fill(waterfall.header(), waterfall.rows(self._toggled))
        position = panel.position()
        whole = completeness(trace)
        panel.entitle(facts(trace.request), f"{whole} · {position}" if position else whole)
        self._paint_detail(trace, waterfall)

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
    def _moved(self) -> None:
        self.paint()

    @on(Listing.Opened)
    def _opened(self) -> None:
        self.action_fold()

    def action_fold(self) -> None:
        """Open or close the selected row."""
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

    def action_axis(self) -> None:
        """Switch the scale."""
        self._linear = not self._linear
        self.paint()

    def action_back(self) -> None:
        """Back to where the trace was opened."""
        self.dismiss()


_NOT_FOUND: Final = 404
