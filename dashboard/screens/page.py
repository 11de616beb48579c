"""A page of text that scrolls."""

from collections.abc import Callable, Iterable
from typing import ClassVar

from textual.binding import BindingType
from textual.widget import Widget

from dashboard.action import PAGE
from dashboard.screens.console import ConsoleScreen, bindings_of
from dashboard.session import Session
from dashboard.view.lines import Line, Row
from dashboard.view.page import Page
from dashboard.widgets.listing import Listing


class PageScreen(ConsoleScreen):
    """Lines on top of another screen, until `esc`."""

    NAME: ClassVar[str] = PAGE
    BINDINGS: ClassVar[list[BindingType]] = bindings_of(PAGE)

    def __init__(
        self, session: Session, page: Page, reload: Callable[[], Page | None] | None = None
    ) -> None:
        super().__init__(session)
        self._page = page
        self._reload = reload

    def body(self) -> Iterable[Widget]:
        """One box."""
        yield Listing(id="page", classes="box")

    def on_mount(self) -> None:
        """The text has the focus."""
        super().on_mount()
        self.query_one("#page").focus()

    def paint_body(self) -> None:
        """Fill the box; every line can hold the cursor, so that it scrolls line by line."""
        if self._reload is not None and not self._page.is_final:
            self._page = self._reload() or self._page
        listing = self.query_one("#page", Listing)
        listing.fill((), [Row(str(at), text) for at, text in enumerate(self._lines())])
        listing.entitle(self._page.title, self._page.subtitle or listing.position())

    def _lines(self) -> Iterable[Line]:
        return self._page.lines

    def action_back(self) -> None:
        """Back to where the page was opened."""
        self.dismiss()
