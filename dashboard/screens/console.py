"""What all full screens share: top line, message line, footer, navigation."""

from collections.abc import Iterable
from contextlib import suppress
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.css.query import NoMatches
from textual.events import Resize
from textual.screen import Screen
from textual.widget import Widget

from appliance.supervisor.admin.schemas import AdapterRow, EngineRow, RequestRow
from dashboard.action import ADAPTERS, ENGINE, EVENTS, FLEET, OPERATIONS, REQUESTS, Action
from dashboard.actions import actions_on, find_action
from dashboard.messages import DumpStacks, GoTo, OpenMoment, OpenTelemetry, Order, Say
from dashboard.screens.dialogs import ConfirmDialog, Question
from dashboard.screens.help import HelpScreen
from dashboard.screens.moment_dialog import MomentDialog
from dashboard.session import Session
from dashboard.verbs import Note
from dashboard.view.lines import WARN, Line
from dashboard.view.moment import AskedMoment
from dashboard.view.requests import is_live
from dashboard.view.text import clean, short_id
from dashboard.view.topbar import top_line
from dashboard.widgets.keyline import KeyLine
from dashboard.widgets.listing import Panel


def bindings_of(screen_name: str) -> list[BindingType]:
    """The bindings of a screen, from the table."""
    return [
        Binding(action.keys, action.id, action.label, show=False, id=f"{screen_name}.{action.id}")
        for action in actions_on(screen_name)
    ]


class ConsoleScreen(Screen[None]):
    """A screen between the top line and the footer. Subclasses give `body` and `paint_body`."""

    NAME: ClassVar[str]
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (120, "-wide")]  # noqa: RUF012 - Textual's own type
    VERTICAL_BREAKPOINTS = [(0, "-short"), (36, "-tall")]  # noqa: RUF012

    def __init__(self, session: Session) -> None:
        super().__init__()
        self.session = session

    def compose(self) -> ComposeResult:
        """Top line, body, message line, footer."""
        yield Panel(id="top")
        yield from self.body()
        yield Panel(id="message")
        yield KeyLine(self.NAME)

    def body(self) -> Iterable[Widget]:
        """The widgets between the lines."""
        return ()

    def paint_body(self) -> None:
        """Fill the widgets of `body` from the state."""

    def on_mount(self) -> None:
        """Fill the screen as soon as its size is known."""
        self.call_after_refresh(self.paint)

    def on_screen_resume(self) -> None:
        """What happened while another screen was on top."""
        self.call_after_refresh(self.paint)

    def on_resize(self, _event: Resize) -> None:
        """Lines are as wide as the screen."""
        self.call_after_refresh(self.paint)

    def paint(self) -> None:
        """Draw what changed. Nothing is drawn while the operator froze the screen."""
        if not self.is_mounted or self.size.width == 0:
            return
        with suppress(NoMatches):  # a timer may still fire while the screen is taken down
            if not self.session.is_paused:
                self.paint_body()
            self._paint_lines()

    def paint_lines(self) -> None:
        """Draw top line, message and footer."""
        with suppress(NoMatches):
            self._paint_lines()

    def _paint_lines(self) -> None:
        self.query_one("#top", Panel).show([self.top()])
        self.query_one("#message", Panel).show([self.session.message()])
        available = {action.id for action in actions_on(self.NAME) if not self.obstacle(action)}
        self.query_one(KeyLine).update(lambda action: action.id in available, self.size.width)

    def top(self) -> Line:
        """The top line."""
        session = self.session
        width = self.size.width
        return top_line(session.state, session.source.label, session.role, session.now_s(), width)

    # what is selected

    def selected_engine(self) -> EngineRow | None:
        """The engine that verbs are meant for."""
        return None

    def selected_request(self) -> RequestRow | None:
        """The request that verbs are meant for."""
        return None

    def selected_adapter(self) -> AdapterRow | None:
        """The adapter that verbs are meant for."""
        return None

    def tried_model(self) -> str | None:
        """The model that a tried prompt goes to: that of the selected engine, or of the first."""
        engine = self.selected_engine() or next(iter(self.session.state.engines.values()), None)
        if engine is None:
            return None
        return engine.served_names[0] if engine.served_names else engine.model

    def obstacle(self, action: Action) -> str | None:
        """Why the action would be refused now; None if it would not."""
        if refusal := self.session.refusal(action.scope):
            return refusal
        if action.of == "engine":
            return _engine_obstacle(action, self.selected_engine())
        if action.of == "request":
            return _request_obstacle(self.selected_request())
        if action.of == "adapter" and self.selected_adapter() is None:
            return "no adapter is selected"
        return None

    def _may(self, action_id: str) -> bool:
        """Whether to go on with an action; says why if not."""
        action = find_action(action_id, self.NAME)
        obstacle = self.obstacle(action) if action else "not here"
        if obstacle:
            self.post_message(Say(Note(obstacle, WARN)))
        return obstacle is None

    def _confirm(self, question: Question, order: Order | DumpStacks) -> None:
        def decide(confirmed: bool | None) -> None:
            if confirmed:
                self.post_message(order)

        self.app.push_screen(ConfirmDialog(question), decide)

    # navigation

    def action_fleet(self) -> None:
        """Show the fleet."""
        self.post_message(GoTo(FLEET))

    def action_engine(self) -> None:
        """Show the selected engine, or the first."""
        engine = self.selected_engine()
        self.post_message(GoTo(ENGINE, engine.id if engine else ""))

    def action_requests(self) -> None:
        """Show the requests."""
        self.post_message(GoTo(REQUESTS))

    def action_adapters(self) -> None:
        """Show the adapters."""
        self.post_message(GoTo(ADAPTERS))

    def action_events(self) -> None:
        """Show events, logs and audit."""
        self.post_message(GoTo(EVENTS))

    def action_operations(self) -> None:
        """Show operations and profiles."""
        self.post_message(GoTo(OPERATIONS))

    def action_telemetry(self) -> None:
        """Show what is recorded."""
        self.post_message(OpenTelemetry())

    def action_moment(self) -> None:
        """Ask for a time, then show what happened then."""
        now = self.session.state.server_now(self.session.now_s())

        def show(asked: AskedMoment | None) -> None:
            if asked is not None:
                self.post_message(OpenMoment(asked))

        self.app.push_screen(MomentDialog(now), show)

    def action_help(self) -> None:
        """Show all keys."""
        self.app.push_screen(HelpScreen(self.NAME))

    def action_pause(self) -> None:
        """Freeze or thaw the screen."""
        self.session.toggle_pause()
        self.paint()

    def action_quit(self) -> None:
        """Leave."""
        self.app.exit()


def _engine_obstacle(action: Action, engine: EngineRow | None) -> str | None:
    if engine is None:
        return "no engine is selected"
    if action.verb is None:
        return None if engine.pid is not None else f"{clean(engine.id)} has no process"
    if action.verb in engine.allowed_actions:
        return None
    possible = ", ".join(clean(verb) for verb in engine.allowed_actions) or "nothing"
    return f"{clean(engine.id)} is {engine.state.replace('_', ' ')}; possible now: {possible}"


def _request_obstacle(request: RequestRow | None) -> str | None:
    if request is None:
        return "no request is selected"
    return None if is_live(request) else f"{short_id(request.id)} has ended"
