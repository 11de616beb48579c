"""What happened at a time."""

from collections.abc import Iterable
from typing import ClassVar

from textual import on
from textual.binding import BindingType
from textual.widget import Widget

from appliance.supervisor.admin.schemas import Moment, RequestRow
from dashboard.action import MOMENT
from dashboard.client.problems import ApiProblem, UnreachableError
from dashboard.messages import OpenTrace
from dashboard.screens.console import ConsoleScreen, bindings_of
from dashboard.session import Session
from dashboard.verbs import problem_note
from dashboard.view.lines import DIM, WARN, Line, Piece, Row, line
from dashboard.view.moment import AskedMoment, moment_rows, span
from dashboard.view.topbar import crumb_line
from dashboard.widgets.listing import Listing


class MomentScreen(ConsoleScreen):
    """The summary of a minute; its requests open as traces."""

    NAME: ClassVar[str] = MOMENT
    BINDINGS: ClassVar[list[BindingType]] = bindings_of(MOMENT)

    def __init__(self, session: Session, asked: AskedMoment) -> None:
        super().__init__(session)
        self._asked = asked
        self._moment: Moment | None = None
        self._problem = ""

    def body(self) -> Iterable[Widget]:
        """One list."""
        yield Listing(id="moment", classes="box")

    def on_mount(self) -> None:
        """Begin to load."""
        super().on_mount()
        self.query_one("#moment").focus()
        self.run_worker(self._load(), exclusive=True, exit_on_error=False)

    async def _load(self) -> None:
        insight = self.session.source.insight
        try:
            self._moment = await insight.moment(self._asked.at, self._asked.window_s)
        except (ApiProblem, UnreachableError) as error:
            note = problem_note(error)
            self._problem = f"{note.text} · {note.hint}" if note.hint else note.text
        self.paint()
        self._select_first()

    def _select_first(self) -> None:
        """Put the cursor on the slowest request, where that leaves the sentences in sight."""
        listing = self.query_one("#moment", Listing)
        slowest = self._slowest()
        if slowest and not listing.position():
            listing.select(slowest)

    def _slowest(self) -> str | None:
        rows = self._moment.slowest if self._moment else []
        return rows[0].request_id if rows else None

    def top(self) -> Line:
        """The time that was asked for."""
        session = self.session
        text = f"what happened from {self._asked.told}"
        return crumb_line(session.state, text, Piece(""), session.now_s(), self.size.width)

    def paint_body(self) -> None:
        """Fill the list."""
        listing = self.query_one("#moment", Listing)
        if self._moment is None:
            text = Piece(f" {self._problem}", WARN) if self._problem else Piece(" asking …", DIM)
            listing.fill((), [Row("", line(text))])
            listing.entitle("moment")
            return
        listing.fill((), moment_rows(self._moment, listing.content_size.width))
        listing.entitle(span(self._moment), listing.position())

    def selected_request(self) -> RequestRow | None:
        """The request under the cursor, if it is still remembered."""
        return self.session.request(self.query_one("#moment", Listing).selected)

    @on(Listing.Moved)
    def _moved(self) -> None:
        self.paint()

    @on(Listing.Opened)
    def _opened(self) -> None:
        self.action_open()

    def action_open(self) -> None:
        """Open the trace of the selected request, or of the slowest."""
        if request_id := self.query_one("#moment", Listing).selected or self._slowest():
            self.post_message(OpenTrace(request_id))

    def action_back(self) -> None:
        """Back to where the time was asked for."""
        self.dismiss()
