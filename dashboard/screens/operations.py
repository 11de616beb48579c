"""Operations with their progress, and profiles with their files."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import ClassVar, Final

from textual import on
from textual.binding import BindingType
from textual.widget import Widget

from appliance.supervisor.admin.schemas import ProfileRow
from dashboard.action import FLEET, OPERATIONS
from dashboard.client.problems import ApiProblem, UnreachableError
from dashboard.messages import GoTo, OpenPage
from dashboard.screens.console import bindings_of
from dashboard.screens.operator import OperatorScreen
from dashboard.session import Session
from dashboard.verbs import problem_note
from dashboard.view.lines import BOLD, DIM, WARN, Piece, Row, line
from dashboard.view.operations import (
    operation_page,
    operation_rows,
    operations_header,
    profile_rows,
    profiles_header,
)
from dashboard.view.page import Page, profile_page
from dashboard.widgets.listing import Listing

POLL_S: Final = 1.0


class OperationsScreen(OperatorScreen):
    """Two tables; enter opens what is selected."""

    NAME: ClassVar[str] = OPERATIONS
    BINDINGS: ClassVar[list[BindingType]] = bindings_of(OPERATIONS)

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._profiles: Sequence[ProfileRow] = ()
        self._problem = ""
        self._asked = False

    def body(self) -> Iterable[Widget]:
        """One above the other."""
        yield Listing(id="all-operations", classes="box")
        yield Listing(id="profiles", classes="box")

    def on_mount(self) -> None:
        """Begin to ask for profiles; operations come by themselves."""
        super().on_mount()
        self.query_one("#all-operations").focus()
        self.run_worker(self._poll(), exclusive=True, exit_on_error=False)

    async def _poll(self) -> None:
        while True:
            try:
                self._profiles = await self.session.source.insight.profiles()
                self._problem = ""
            except (ApiProblem, UnreachableError) as error:
                self._problem = problem_note(error).text
            self._asked = True
            self.paint()
            await asyncio.sleep(POLL_S)

    def paint_body(self) -> None:
        """Fill both tables."""
        state, listing = self.session.state, self.query_one("#all-operations", Listing)
        width = listing.content_size.width
        rows = operation_rows(state, self.session.now_s(), width)
        listing.fill(operations_header(width), rows or [_no_operations()])
        listing.entitle(f"operations · {len(state.operations)}", listing.position())
        listing = self.query_one("#profiles", Listing)
        width = listing.content_size.width
        rows = profile_rows(self._profiles, width)
        listing.fill(profiles_header(width), rows or [self._no_profiles()])
        listing.entitle(f"profiles · {len(self._profiles)}", listing.position())

    def _no_profiles(self) -> Row:
        if self._problem:
            return Row("", line(Piece(self._problem, WARN)))
        if not self._asked:
            return Row("", line(Piece("asking …", DIM)))
        return Row(
            "",
            line(Piece("no profile yet · ", DIM), Piece("f", BOLD), " on an engine (1) starts one"),
        )

    @on(Listing.Moved)
    def _moved(self) -> None:
        self.paint()

    @on(Listing.Opened)
    def _opened(self) -> None:
        self.action_open()

    def action_open(self) -> None:
        """Show the selected operation or profile on a page."""
        profiles = self.query_one("#profiles", Listing)
        if profiles.has_focus:
            self._open(partial(self._profile_page, profiles.selected or ""))
            return
        self._open(partial(self._operation_page, self._selected_operation()))

    def _selected_operation(self) -> str:
        return self.query_one("#all-operations", Listing).selected or ""

    def _open(self, make: Callable[[], Page | None]) -> None:
        """Show a page that stays up to date while what it is about goes on."""
        page = make()
        if page is not None:
            self.post_message(OpenPage(page, make))

    def _operation_page(self, operation_id: str) -> Page | None:
        found = self.session.state.operations.get(operation_id)
        return operation_page(found) if found else None

    def _profile_page(self, profile_id: str) -> Page | None:
        found = next((row for row in self._profiles if row.id == profile_id), None)
        return profile_page(found) if found else None

    def action_back(self) -> None:
        """Go back to the fleet."""
        self.post_message(GoTo(FLEET))


def _no_operations() -> Row:
    return Row("", line(Piece("nothing was ordered yet", DIM)))
