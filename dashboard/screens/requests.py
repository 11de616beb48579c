"""The request list: live ones first, then those that ended; `/` filters."""

from collections.abc import Iterable
from typing import ClassVar

from textual import on
from textual.binding import BindingType
from textual.widget import Widget
from textual.widgets import Input

from appliance.supervisor.admin.schemas import EngineRow, RequestRow
from dashboard.action import FLEET, REQUESTS
from dashboard.messages import GoTo, OpenTrace
from dashboard.screens.console import bindings_of
from dashboard.screens.operator import OperatorScreen
from dashboard.session import Session
from dashboard.view.lines import DIM, Piece, Row, line
from dashboard.view.requests import filtered, request_rows, requests_header
from dashboard.widgets.listing import Listing


class RequestsScreen(OperatorScreen):
    """Every request that is remembered."""

    NAME: ClassVar[str] = REQUESTS
    BINDINGS: ClassVar[list[BindingType]] = bindings_of(REQUESTS)

    def __init__(self, session: Session, query: str = "") -> None:
        super().__init__(session)
        self._query = query

    def body(self) -> Iterable[Widget]:
        """The list and the filter line."""
        yield Listing(id="requests", classes="box")
        yield Input(
            self._query,
            placeholder="words, engine=e0, state=failed, !not",
            id="filter",
            compact=True,
        )

    def on_mount(self) -> None:
        """The filter line is there only when it filters."""
        super().on_mount()
        self.query_one("#filter").display = bool(self._query)
        self.query_one("#requests").focus()

    def paint_body(self) -> None:
        """Fill the list."""
        state, panel = self.session.state, self.query_one("#requests", Listing)
        everything = [*state.live(), *state.ended()]
        shown = filtered(everything, self._query)
        width = panel.content_size.width
        rows = request_rows(state, shown, self.session.now_s(), width)
        panel.fill(requests_header(width), rows or [_nothing(bool(everything))])
        of = f"{len(shown)} of {len(everything)}" if self._query else str(len(everything))
        panel.entitle(f"requests · {of}", panel.position())

    def selected_request(self) -> RequestRow | None:
        """The request under the cursor."""
        return self.session.request(self.query_one("#requests", Listing).selected)

    def selected_engine(self) -> EngineRow | None:
        """The engine of that request."""
        request = self.selected_request()
        return self.session.engine(request.engine) if request else None

    @on(Listing.Moved)
    def _moved(self) -> None:
        self.paint()

    @on(Listing.Opened)
    def _opened(self) -> None:
        self.action_open()

    @on(Input.Changed)
    def _filter(self, event: Input.Changed) -> None:
        self._query = event.value
        self.paint()

    @on(Input.Submitted)
    def _filtered(self) -> None:
        self.query_one("#filter").display = bool(self._query)
        self.query_one("#requests").focus()

    def action_filter(self) -> None:
        """Open the filter line."""
        field = self.query_one("#filter", Input)
        field.display = True
        field.focus()

    def action_open(self) -> None:
        """Open the trace of the selected request."""
        if request := self.selected_request():
            self.post_message(OpenTrace(request.id))

    def action_back(self) -> None:
        """Drop the filter, then go back to the fleet."""
        field = self.query_one("#filter", Input)
        if field.display:
            field.value = ""
            field.display = False
            self.query_one("#requests").focus()
        else:
            self.post_message(GoTo(FLEET))


def _nothing(filtered_out: bool) -> Row:
    if filtered_out:
        return Row("", line(Piece("nothing fits the filter · esc drops it", DIM)))
    return Row(
        "", line("no requests yet · press ", Piece("t", "bold"), " to send one and see its trace")
    )
