"""One engine in detail."""

import asyncio
from collections.abc import Iterable
from typing import ClassVar, Final

from textual import on
from textual.binding import BindingType
from textual.widget import Widget

from appliance.supervisor.admin.schemas import EngineRow, FlightReport
from dashboard.action import ENGINE, FLEET, REQUESTS
from dashboard.client.problems import ApiProblem, UnreachableError
from dashboard.messages import GoTo
from dashboard.screens.console import bindings_of
from dashboard.screens.operator import OperatorScreen
from dashboard.session import Session
from dashboard.verbs import problem_note
from dashboard.view.engine import (
    engine_lines,
    flight_events,
    flight_summary,
    flight_title,
    step_rows,
    steps_header,
)
from dashboard.view.lines import DIM, WARN, Piece, Row, line
from dashboard.view.text import clean
from dashboard.widgets.listing import Listing, Panel

POLL_S: Final = 1.0
_STEPS: Final = 128
_FRAME: Final = 2


class EngineScreen(OperatorScreen):
    """Facts above, the flight recorder below: it is there for a dead engine too."""

    NAME: ClassVar[str] = ENGINE
    BINDINGS: ClassVar[list[BindingType]] = bindings_of(ENGINE)

    def __init__(self, session: Session, engine_id: str = "") -> None:
        super().__init__(session)
        self._engine_id = engine_id
        self._flight: FlightReport | None = None
        self._problem = ""
        self._wants_crash = False

    def body(self) -> Iterable[Widget]:
        """Facts, steps, events."""
        yield Panel(id="engine-facts", classes="box")
        yield Panel(id="step-summary")
        yield Listing(id="steps", classes="box")
        yield Panel(id="flight-events", classes="box")

    def on_mount(self) -> None:
        """Begin to ask for the flight recorder."""
        super().on_mount()
        self.query_one("#steps").focus()
        self._begin()

    def _begin(self) -> None:
        self._flight, self._problem = None, ""
        self.run_worker(self._poll(), exclusive=True, exit_on_error=False)

    async def _poll(self) -> None:
        while True:
            if engine := self.selected_engine():
                await self._fetch(engine)
                self.paint()
            await asyncio.sleep(POLL_S)

    async def _fetch(self, engine: EngineRow) -> None:
        """Ask for the process that runs; without one, or where that is wanted, for the crash."""
        epoch = None if self._wants_crash or engine.pid is None else engine.epoch
        try:
            self._flight = await self.session.source.insight.flight(engine.id, _STEPS, epoch)
            self._problem = ""
        except (ApiProblem, UnreachableError) as error:
            self._problem = problem_note(error).text

    def selected_engine(self) -> EngineRow | None:
        """The engine of this screen, or the first there is."""
        engines = self.session.state.engines
        return engines.get(self._engine_id) or next(iter(engines.values()), None)

    def paint_body(self) -> None:
        """Fill the panels."""
        state, engine = self.session.state, self.selected_engine()
        panel = self.query_one("#engine-facts", Panel)
        if engine is None:
            panel.show([line(Piece(" no engine is known yet", DIM))])
            return
        lines = engine_lines(state, engine, self.session.now_s(), panel.content_size.width)
        height = len(lines) + _FRAME
        if panel.styles.height is None or panel.styles.height.value != height:
            panel.styles.height = height
        panel.show(lines)
        names = [f"[{clean(name)}]" if name == engine.id else clean(name) for name in state.engines]
        panel.entitle(f"engine {' '.join(names)}", "] next engine" if len(names) > 1 else "")
        self._paint_flight()

    def _paint_flight(self) -> None:
        listing, report = self.query_one("#steps", Listing), self._flight
        width = listing.content_size.width
        if report is None:
            text = Piece(self._problem, WARN) if self._problem else Piece("asking …", DIM)
            listing.fill((), [Row("", line(text))])
            listing.entitle("last steps")
            self.query_one("#step-summary", Panel).show([])
            self.query_one("#flight-events", Panel).show([])
            return
        listing.fill(steps_header(width), step_rows(report, width))
        listing.entitle(flight_title(report), self._problem or listing.position())
        self.query_one("#step-summary", Panel).show([flight_summary(report, self.size.width)])
        events = self.query_one("#flight-events", Panel)
        if events.display:
            events.show(flight_events(report, events.content_size.height))
            events.entitle("events" if report.alive else "events and last words")

    @on(Listing.Moved)
    def _moved(self) -> None:
        self.paint()

    @on(Listing.Opened)
    def _opened(self) -> None:
        self.action_open()

    def action_open(self) -> None:
        """Show the requests of the engine."""
        if engine := self.selected_engine():
            self.post_message(GoTo(REQUESTS, f"engine={engine.id}"))

    def action_next_engine(self) -> None:
        """The next engine, around the end."""
        names = list(self.session.state.engines)
        engine = self.selected_engine()
        if engine is not None:
            self._engine_id = names[(names.index(engine.id) + 1) % len(names)]
            self._begin()
            self.paint()

    def action_last_crash(self) -> None:
        """Show the steps of the last crash, or those of the process that runs."""
        self._wants_crash = not self._wants_crash
        self._begin()
        self.paint()

    def action_back(self) -> None:
        """Go back to the fleet."""
        self.post_message(GoTo(FLEET))
