"""The first screen: engines, traffic, live requests."""

from collections.abc import Iterable
from typing import ClassVar, Final

from textual import on
from textual.binding import BindingType
from textual.containers import Horizontal
from textual.widget import Widget

from appliance.supervisor.admin.schemas import EngineRow, RequestRow
from dashboard.action import FLEET, REQUESTS
from dashboard.messages import GoTo, OpenTrace
from dashboard.screens.console import bindings_of
from dashboard.screens.operator import OperatorScreen
from dashboard.view.events import event_lines, operation_lines
from dashboard.view.fleet import engine_rows, engines_header, fleet_summary
from dashboard.view.lines import DIM, WARN, Piece, Row, line
from dashboard.view.requests import request_rows, requests_header
from dashboard.view.slo import slo_line, slo_table
from dashboard.view.text import clean
from dashboard.view.traffic import latency_lines, throughput_lines, throughput_peak, window
from dashboard.widgets.listing import Listing, Panel

_FRAME: Final = 2
_MOST_ENGINES_SHORT: Final = 5
_MOST_ENGINES_TALL: Final = 12
_RECENT: Final = 20
_TALL: Final = 36


class FleetScreen(OperatorScreen):
    """What every engine does, how fast, for whom."""

    NAME: ClassVar[str] = FLEET
    BINDINGS: ClassVar[list[BindingType]] = bindings_of(FLEET)

    def body(self) -> Iterable[Widget]:
        """Four panels, and two more if there is room."""
        yield Listing(id="engines", classes="box")
        yield Horizontal(
            Panel(id="throughput", classes="box"), Panel(id="latency", classes="box"), id="traffic"
        )
        yield Panel(id="slos", classes="box")
        yield Horizontal(
            Listing(id="requests", classes="box"), Panel(id="operations", classes="box"), id="work"
        )
        yield Panel(id="events", classes="box")

    def paint_body(self) -> None:
        """Fill all panels."""
        self._paint_engines()
        self._paint_traffic()
        self._paint_slos()
        self._paint_requests()
        self._paint_journal()

    def _paint_engines(self) -> None:
        state, panel = self.session.state, self.query_one("#engines", Listing)
        most = _MOST_ENGINES_TALL if self.size.height >= _TALL else _MOST_ENGINES_SHORT
        height = max(1, min(most, len(state.engines))) + 1 + _FRAME
        if panel.styles.height is None or panel.styles.height.value != height:
            panel.styles.height = height
        width = panel.content_size.width
        rows = engine_rows(state, self.session.now_s(), width) or [self._no_engines()]
        panel.fill(engines_header(width), rows)
        panel.entitle("engines", fleet_summary(state) if state.engines else "")

    def _no_engines(self) -> Row:
        state = self.session.state
        if state.ever_connected:
            return Row("", line(Piece("no engine is configured", DIM)))
        reason = clean(state.link_reason)
        if not reason:
            return Row("", line(Piece(f"connecting to {self.session.source.label} …", DIM)))
        return Row("", line(Piece(f"is `quarterdeck serve` running? {reason}", WARN)))

    def _paint_traffic(self) -> None:
        state = self.session.state
        panel = self.query_one("#throughput", Panel)
        size = panel.content_size
        panel.show(throughput_lines(state, size.width, size.height))
        panel.entitle("throughput tok/s", throughput_peak(state))
        panel = self.query_one("#latency", Panel)
        size = panel.content_size
        panel.show(latency_lines(state, size.width, size.height))
        panel.entitle(f"latency · window {window(state)}")

    def _paint_slos(self) -> None:
        """The promises: a table where there is room, a line where there is none."""
        stats, panel = self.session.state.stats, self.query_one("#slos", Panel)
        slos = stats.slos if stats else []
        panel.display = bool(slos)
        if not slos:
            return
        if self.size.height < _TALL:
            panel.styles.height = 1
            panel.show([slo_line(slos, panel.content_size.width)])
            return
        panel.styles.height = len(slos) + 1 + _FRAME
        panel.show(slo_table(slos, panel.content_size.width))
        panel.entitle("promises (SLOs)", f"budget of {slos[0].window_days:g} days")

    def _paint_requests(self) -> None:
        state, panel = self.session.state, self.query_one("#requests", Listing)
        live = state.live()
        shown = [*live, *state.ended()[:_RECENT]]
        width = panel.content_size.width
        rows = request_rows(state, shown, self.session.now_s(), width)
        panel.fill(requests_header(width), rows or [_no_requests()])
        waiting = sum(row.state in ("held", "queued") for row in live)
        panel.entitle(
            f"requests · running {len(live) - waiting} · waiting {waiting}", panel.position()
        )

    def _paint_journal(self) -> None:
        state = self.session.state
        events = self.query_one("#events", Panel)
        if events.display:
            events.show(event_lines(state, events.content_size.height))
            events.entitle("events")
        operations = self.query_one("#operations", Panel)
        if operations.display:
            size = operations.content_size
            operations.show(operation_lines(state, self.session.now_s(), size.width, size.height))
            operations.entitle("operations and gateways")

    def selected_engine(self) -> EngineRow | None:
        """The engine under the cursor of the upper table."""
        return self.session.engine(self.query_one("#engines", Listing).selected)

    def selected_request(self) -> RequestRow | None:
        """The request under the cursor of the lower table."""
        return self.session.request(self.query_one("#requests", Listing).selected)

    @on(Listing.Moved)
    def _moved(self) -> None:
        self.paint_lines()

    @on(Listing.Opened)
    def _opened(self) -> None:
        self.action_open()

    def action_open(self) -> None:
        """Open what the focused panel has selected."""
        engines = self.query_one("#engines", Listing)
        selected = engines.selected if engines.has_focus else None
        if selected:
            self.post_message(GoTo(REQUESTS, f"engine={selected}"))
        elif request := self.selected_request():
            self.post_message(OpenTrace(request.id))


def _no_requests() -> Row:
    return Row(
        "", line("no requests yet · press ", Piece("t", "bold"), " to send one and see its trace")
    )
