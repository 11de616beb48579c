"""Events, logs and the audit log: one list, three sources, one filter."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import ClassVar, Final

from textual import on
from textual.binding import Binding, BindingType
from textual.widget import Widget
from textual.widgets import Input

from dashboard.action import EVENTS, FLEET
from dashboard.client.problems import ApiProblem, UnreachableError
from dashboard.messages import GoTo, OpenPage, OpenTrace, Say
from dashboard.screens.console import ConsoleScreen, bindings_of
from dashboard.session import Session
from dashboard.store.records import Records
from dashboard.verbs import Note, problem_note
from dashboard.view.journal import (
    Entry,
    entry_lines,
    entry_of_audit,
    entry_of_event,
    entry_of_line,
    entry_page,
    fits,
    journal_rows,
    log_query,
)
from dashboard.view.lines import BAD, DIM, WARN, Piece, Row, line
from dashboard.widgets.listing import Listing, Panel

POLL_S: Final = 1.0
_SLOW_POLL_S: Final = 3.0
_FIRST_EVENTS: Final = 500
_AUDIT_ENTRIES: Final = 200
TABS: Final = ("events", "logs", "audit")


class EventsScreen(ConsoleScreen):
    """The newest entry is at the end; `follow` keeps the cursor on it."""

    NAME: ClassVar[str] = EVENTS
    BINDINGS: ClassVar[list[BindingType]] = [
        *bindings_of(EVENTS),
        Binding("right", "cycle(1)", show=False),
        Binding("left", "cycle(-1)", show=False),
    ]

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._tab = TABS[0]
        self._query = ""
        self._follows = True
        self._records = Records[Entry]()
        self._problem = ""
        self._shown: dict[str, Entry] = {}

    def body(self) -> Iterable[Widget]:
        """The list, the selected entry in full, the filter line."""
        yield Listing(id="journal", classes="box")
        yield Panel(id="entry", classes="box")
        yield Input(
            placeholder="words, level=warning, process=e0, kind=engine, !not",
            id="filter",
            compact=True,
        )

    def on_mount(self) -> None:
        """Begin with events."""
        super().on_mount()
        self.query_one("#filter").display = False
        self.query_one("#journal").focus()
        self._begin()

    def _begin(self) -> None:
        """Ask anew for what the tab shows."""
        self._records = Records[Entry]()
        self._problem = ""
        polls = {"events": self._poll_events, "logs": self._poll_logs, "audit": self._poll_audit}
        self.run_worker(polls[self._tab](), group="poll", exclusive=True, exit_on_error=False)
        self.paint()

    async def _poll_events(self) -> None:
        """Fetch what was before; what comes is pushed into the state."""
        await self._try(self._fetch_events)

    async def _fetch_events(self) -> None:
        rows = await self.session.source.insight.journal(_FIRST_EVENTS)
        self._records.add((row.id, entry_of_event(row)) for row in rows)

    async def _poll_logs(self) -> None:
        while True:
            await self._try(self._fetch_logs)
            await asyncio.sleep(POLL_S)

    async def _fetch_logs(self) -> None:
        state = self.session.state
        processes = {"supervisor", *state.engines, *state.gateways}
        query = log_query(self._query, processes, self._records.last_id)
        rows = await self.session.source.insight.logs(query)
        self._records.add((row.id, entry_of_line(row)) for row in rows)

    async def _poll_audit(self) -> None:
        while True:
            await self._try(self._fetch_audit)
            await asyncio.sleep(_SLOW_POLL_S)

    async def _fetch_audit(self) -> None:
        rows = await self.session.source.insight.audit(_AUDIT_ENTRIES)
        self._records.add((row.seq, entry_of_audit(row)) for row in rows)

    async def _try(self, fetch: Callable[[], Awaitable[None]]) -> None:
        try:
            await fetch()
            self._problem = ""
        except (ApiProblem, UnreachableError) as error:
            self._problem = problem_note(error).text
        self._records.was_asked = True
        self.paint()

    def paint_body(self) -> None:
        """Fill the list with what fits the filter."""
        if self._tab == "events":
            events = self.session.state.events
            self._records.add((event.id, entry_of_event(event)) for event in events)
        everything = self._records.entries()
        shown = [entry for entry in everything if fits(entry, self._query)]
        self._shown = {entry.key: entry for entry in shown}
        listing = self.query_one("#journal", Listing)
        rows = journal_rows(shown, listing.content_size.width - 1)
        listing.fill((), rows or [self._nothing(bool(everything))])
        if self._follows:
            listing.action_edge(True)
        self._entitle(listing, len(shown), len(everything))
        self._paint_entry()

    def _entitle(self, listing: Listing, shown: int, of: int) -> None:
        tabs = " · ".join(f"[{tab}]" if tab == self._tab else tab for tab in TABS)
        number = f"{shown} of {of}" if self._query else str(of)
        follow = "● follow" if self._follows else "○ stays"
        listing.entitle(f"{tabs} · {number}", f"{self._problem or listing.position()} {follow}")

    def _nothing(self, filtered_out: bool) -> Row:
        if self._problem:
            return Row("", line(Piece(f" {self._problem}", BAD)))
        if filtered_out:
            return Row("", line(Piece(" nothing fits the filter · esc drops it", WARN)))
        return Row("", line(Piece(" nothing yet" if self._records.was_asked else " asking …", DIM)))

    def _paint_entry(self) -> None:
        panel = self.query_one("#entry", Panel)
        entry = self._selected()
        panel.show(entry_lines(entry, panel.content_size.width))
        panel.entitle(f"{entry.source} {entry.kind}" if entry else "")

    def _selected(self) -> Entry | None:
        return self._shown.get(self.query_one("#journal", Listing).selected or "")

    @on(Listing.Moved)
    def _moved(self) -> None:
        self._follows = self.query_one("#journal", Listing).is_at_end
        self._paint_entry()
        self.paint_lines()

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
        self.query_one("#journal").focus()
        if self._tab == "logs":
            self._begin()  # the server may know older lines that fit

    def action_filter(self) -> None:
        """Open the filter line."""
        field = self.query_one("#filter", Input)
        field.display = True
        field.focus()

    def action_show_events(self) -> None:
        """The journal."""
        self._show("events")

    def action_show_logs(self) -> None:
        """Lines of the processes."""
        self._show("logs")

    def action_show_audit(self) -> None:
        """Who changed what."""
        if self._may("show_audit"):
            self._show("audit")

    def action_cycle(self, by: int) -> None:
        """The next or previous source."""
        wanted = TABS[(TABS.index(self._tab) + by) % len(TABS)]
        if wanted == "audit":
            self.action_show_audit()
        else:
            self._show(wanted)

    def _show(self, tab: str) -> None:
        self._tab, self._follows = tab, True
        self._begin()

    def action_follow(self) -> None:
        """Stay at the end, or stay here."""
        self._follows = not self._follows
        self.paint()

    def action_verify(self) -> None:
        """Check the audit log."""
        if self._may("verify"):
            self.run_worker(self._verify(), group="verify", exit_on_error=False)

    async def _verify(self) -> None:
        try:
            check = await self.session.source.insight.audit_check()
        except (ApiProblem, UnreachableError) as error:
            self.post_message(Say(problem_note(error)))
            return
        note = Note(f"the audit log is whole: {check.entries} entries")
        if not check.ok:
            text = f"the audit log is broken at entry {check.first_bad_seq}: {check.problem}"
            note = Note(text, BAD, "quarterdeck audit verify")
        self.post_message(Say(note))

    def action_open(self) -> None:
        """Open the trace of the entry's request, or the entry on a page."""
        entry = self._selected()
        if entry is None:
            return
        if entry.request_id:
            self.post_message(OpenTrace(entry.request_id))
        else:
            self.post_message(OpenPage(entry_page(entry)))

    def action_back(self) -> None:
        """Drop the filter, then go back to the fleet."""
        field = self.query_one("#filter", Input)
        if not field.display:
            self.post_message(GoTo(FLEET))
            return
        had_query = bool(self._query)
        field.value = ""
        field.display = False
        self.query_one("#journal").focus()
        if had_query and self._tab == "logs":
            self._query = ""
            self._begin()
