"""What is recorded and exported, what was lost; and the operator's switches for it."""

import asyncio
from collections.abc import Iterable
from typing import ClassVar, Final

from textual import on
from textual.binding import BindingType
from textual.widget import Widget

from appliance.supervisor.admin.schemas import TelemetrySettings
from dashboard.action import TELEMETRY, Action
from dashboard.client.problems import ApiProblem, UnreachableError
from dashboard.messages import Say
from dashboard.screens.amount import AmountDialog
from dashboard.screens.console import ConsoleScreen, bindings_of
from dashboard.screens.dialogs import ConfirmDialog, Question
from dashboard.session import Session
from dashboard.verbs import Note, problem_note
from dashboard.view.lines import DIM, WARN, Line, Piece, Row, line
from dashboard.view.telemetry import (
    Setting,
    changed,
    setting_of,
    telemetry_rows,
    value_of,
)
from dashboard.view.topbar import crumb_line
from dashboard.widgets.listing import Listing

POLL_S: Final = 2.0


class TelemetryScreen(ConsoleScreen):
    """Enter changes the selected setting, after a question."""

    NAME: ClassVar[str] = TELEMETRY
    BINDINGS: ClassVar[list[BindingType]] = bindings_of(TELEMETRY)

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._settings: TelemetrySettings | None = None
        self._problem = ""

    def body(self) -> Iterable[Widget]:
        """One list."""
        yield Listing(id="telemetry", classes="box")

    def on_mount(self) -> None:
        """Begin to ask."""
        super().on_mount()
        self.query_one("#telemetry").focus()
        self.run_worker(self._poll(), group="poll", exit_on_error=False)

    async def _poll(self) -> None:
        while True:
            try:
                self._settings = await self.session.source.insight.telemetry()
                self._problem = ""
            except (ApiProblem, UnreachableError) as error:
                self._problem = problem_note(error).text
            self.paint()
            await asyncio.sleep(POLL_S)

    def top(self) -> Line:
        """Path and freshness."""
        session = self.session
        return crumb_line(
            session.state, "telemetry", Piece(session.role, DIM), session.now_s(), self.size.width
        )

    def paint_body(self) -> None:
        """Fill the list."""
        listing = self.query_one("#telemetry", Listing)
        if self._settings is None:
            text = Piece(f" {self._problem}", WARN) if self._problem else Piece(" asking …", DIM)
            listing.fill((), [Row("", line(text))])
        else:
            listing.fill((), telemetry_rows(self._settings))
        listing.entitle("telemetry · lasts until the appliance ends", self._problem)

    def _selected(self) -> Setting | None:
        return setting_of(self.query_one("#telemetry", Listing).selected)

    def obstacle(self, action: Action) -> str | None:
        """A setting has to be selected, and some need more than operator."""
        if action.id != "change":
            return super().obstacle(action)
        setting = self._selected()
        if self._settings is None or setting is None:
            return "no setting is selected"
        return self.session.refusal(setting.scope)

    @on(Listing.Moved)
    def _moved(self) -> None:
        self.paint()

    @on(Listing.Opened)
    def _opened(self) -> None:
        self.action_change()

    def action_change(self) -> None:
        """Ask, then send the change."""
        setting, settings = self._selected(), self._settings
        if not self._may("change") or setting is None or settings is None:
            return
        value = value_of(settings, setting)
        if isinstance(value, bool):
            self._ask_switch(setting, wanted=not value)
        else:
            self._ask_amount(setting, value)

    def _ask_switch(self, setting: Setting, *, wanted: bool) -> None:
        word = "on" if wanted else "off"
        question = Question(
            f"Switch {setting.label} {word}",
            [f"{setting.label.capitalize()}: {setting.what}.", *_warnings(setting, wanted=wanted)],
            f"Switch {word}",
        )

        def decide(confirmed: bool | None) -> None:
            if confirmed:
                self._send(setting, wanted)

        self.app.push_screen(ConfirmDialog(question), decide)

    def _ask_amount(self, setting: Setting, value: float) -> None:
        def decide(wanted: float | None) -> None:
            if wanted is not None:
                self._send(setting, wanted)

        self.app.push_screen(AmountDialog(setting, value), decide)

    def _send(self, setting: Setting, value: bool | float) -> None:
        self.run_worker(self._change(setting, value), group="change", exit_on_error=False)

    async def _change(self, setting: Setting, value: bool | float) -> None:
        insight = self.session.source.insight
        try:
            self._settings = await insight.change_telemetry(changed(setting, value))
        except (ApiProblem, UnreachableError) as error:
            self.post_message(Say(problem_note(error)))
            return
        now = value_of(self._settings, setting)
        text = ("on" if now else "off") if isinstance(now, bool) else f"{now:g}"
        self.post_message(Say(Note(f"{setting.label} is {text} now")))
        self.paint()

    def action_back(self) -> None:
        """Back to where it was opened."""
        self.dismiss()


def _warnings(setting: Setting, *, wanted: bool) -> list[str]:
    match setting.name, wanted:
        case "content", True:
            return ["Texts of users are then stored and exported with the traces."]
        case "recording", False:
            return ["No trace or explanation of what happens from then on."]
        case _:
            return []
