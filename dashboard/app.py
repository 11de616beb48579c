"""The dashboard's Textual app: pumps frames into the session and paints at a bounded rate."""

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import ClassVar

from textual import on
from textual.app import App, SystemCommand
from textual.screen import Screen

from dashboard.action import ADAPTERS, ENGINE, EVENTS, OPERATIONS, REQUESTS
from dashboard.client.problems import ApiProblem, UnreachableError
from dashboard.messages import (
    DumpStacks,
    GoTo,
    OpenMoment,
    OpenPage,
    OpenTelemetry,
    OpenTrace,
    Order,
    Say,
    TryPrompt,
)
from dashboard.palette import ActionCommands
from dashboard.screens.adapters import AdaptersScreen
from dashboard.screens.console import ConsoleScreen
from dashboard.screens.engine import EngineScreen
from dashboard.screens.events import EventsScreen
from dashboard.screens.fleet import FleetScreen
from dashboard.screens.moment import MomentScreen
from dashboard.screens.operations import OperationsScreen
from dashboard.screens.page import PageScreen
from dashboard.screens.requests import RequestsScreen
from dashboard.screens.telemetry import TelemetryScreen
from dashboard.screens.trace import TraceScreen
from dashboard.session import Session
from dashboard.verbs import Note, Verb, carry_out, problem_note, told
from dashboard.view.lines import INFO
from dashboard.view.page import stacks_page
from dashboard.view.text import clean

logger = logging.getLogger(__name__)

_PROBLEM_STAYS_S = 10.0


class QuarterdeckTop(App[None]):
    """Shows one instance and carries out what its operator confirms.

    Args:
        session: Source and state.
        period_s: Time between two paints; nothing is painted when nothing changed.
    """

    TITLE = "quarterdeck"
    CSS_PATH = "styles/base.tcss"
    COMMANDS = App.COMMANDS | {lambda: ActionCommands}
    ENABLE_COMMAND_PALETTE = True
    AUTO_FOCUS: ClassVar[str | None] = "Listing"

    def __init__(self, session: Session, period_s: float = 0.25) -> None:
        super().__init__()
        self.session = session
        self._period_s = period_s
        self._painted: tuple[int, int] | None = None

    def on_mount(self) -> None:
        """Show the fleet; begin to listen and to paint."""
        self.theme = "ansi-dark"
        self.push_screen(FleetScreen(self.session))
        self.run_worker(self._listen(), group="frames", exit_on_error=False)
        self.set_interval(self._period_s, self._tick)

    async def _listen(self) -> None:
        """Take frames for ever. The source mends broken lines itself; this must not die either."""
        try:
            async for frame in self.session.source.frames():
                self.session.take(frame)
        except Exception as error:
            logger.exception("the source of frames failed")
            self.session.lost(f"{type(error).__name__}: restart the dashboard")

    def _tick(self) -> None:
        """Paint if something changed, or a second passed: the age on the top line counts."""
        seen = (self.session.version, int(self.session.now_s()))
        console = self._console()
        if console is None or seen == self._painted:
            return
        self._painted = seen
        console.paint()

    def _console(self) -> ConsoleScreen | None:
        """The screen on top, unless it is a dialog or the app closes and has none any more."""
        if not self.is_running:
            return None
        return self.screen if isinstance(self.screen, ConsoleScreen) else None

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """Of Textual's own commands only the choice of a theme."""
        for command in super().get_system_commands(screen):
            if command.title == "Theme":
                yield command

    @on(GoTo)
    def _go_to(self, message: GoTo) -> None:
        while len(self.screen_stack) > _BASE_SCREENS:
            self.pop_screen()
        self.switch_screen(self._main_screen(message.screen_name, message.query))

    def _main_screen(self, name: str, query: str) -> ConsoleScreen:
        if name == REQUESTS:
            return RequestsScreen(self.session, query)
        if name == ENGINE:
            return EngineScreen(self.session, query)
        return _MAIN_SCREENS.get(name, FleetScreen)(self.session)

    def _open(self, fresh: ConsoleScreen) -> None:
        """Put a screen on top; one of its kind that is there already makes room."""
        if self.screen.__class__ is fresh.__class__:
            self.pop_screen()
        self.push_screen(fresh)

    @on(OpenTrace)
    def _open_trace(self, message: OpenTrace) -> None:
        self._open(TraceScreen(self.session, message.request_id))

    @on(OpenMoment)
    def _open_moment(self, message: OpenMoment) -> None:
        self._open(MomentScreen(self.session, message.asked))

    @on(OpenTelemetry)
    def _open_telemetry(self, _message: OpenTelemetry) -> None:
        self._open(TelemetryScreen(self.session))

    @on(OpenPage)
    def _open_page(self, message: OpenPage) -> None:
        self._open(PageScreen(self.session, message.page, message.reload))

    @on(DumpStacks)
    def _dump(self, message: DumpStacks) -> None:
        self.run_worker(self._fetch_stacks(message.engine_id), group="verbs", exit_on_error=False)

    async def _fetch_stacks(self, engine_id: str) -> None:
        self._say(Note(f"reading the stacks of {clean(engine_id)}", INFO))
        try:
            dump = await self.session.source.insight.stacks(engine_id)
        except (ApiProblem, UnreachableError) as error:
            self._say(problem_note(error))
            return
        self._say(Note(f"stacks of {clean(engine_id)}, by {dump.tool}"))
        self._open(PageScreen(self.session, stacks_page(dump)))

    @on(Order)
    def _order(self, message: Order) -> None:
        self.run_worker(self._carry_out(message.verb), group="verbs", exit_on_error=False)

    async def _carry_out(self, verb: Verb) -> None:
        self._say(Note(f"ordered: {told(verb)}", INFO))
        self._say(await carry_out(self.session.source, verb))

    @on(TryPrompt)
    def _try(self, message: TryPrompt) -> None:
        self.run_worker(self._send(message), group="verbs", exit_on_error=False)

    async def _send(self, message: TryPrompt) -> None:
        self._say(Note(f"prompt sent to {clean(message.model)}, waiting for the answer", INFO))
        try:
            answer = await self.session.source.try_prompt(message.model, message.prompt)
        except (ApiProblem, UnreachableError) as error:
            self._say(problem_note(error))
            return
        self._say(Note(f"answer: {clean(answer.text)}"))
        self.post_message(OpenTrace(answer.request_id))

    @on(Say)
    def _say_message(self, message: Say) -> None:
        self._say(message.note)

    def _say(self, note: Note) -> None:
        """Show a note at once; a problem also as a toast, with what to do."""
        self.session.say(note)
        if note.is_problem:
            text = f"{note.text}\n{note.hint}" if note.hint else note.text
            self.notify(text, severity="error", timeout=_PROBLEM_STAYS_S, markup=False)
        if console := self._console():
            console.paint_lines()

    async def on_unmount(self) -> None:
        """Let go of the connections."""
        await self.session.source.aclose()


_MAIN_SCREENS: Mapping[str, Callable[[Session], ConsoleScreen]] = {
    ADAPTERS: AdaptersScreen,
    EVENTS: EventsScreen,
    OPERATIONS: OperationsScreen,
}
_BASE_SCREENS = 2
"""Textual's own empty screen, and the fleet or a list on it."""
