"""The dialog that starts a profile: how many steps, and what is recorded beside the operations."""

from typing import ClassVar, Final

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.screen import ModalScreen
from textual.widgets import Button, Input

from appliance.supervisor.admin.schemas import EngineRow, StartProfileBody
from dashboard.screens.dialogs import DIALOG_BINDINGS, buttons, frame, text_lines
from dashboard.view.text import clean
from dashboard.widgets.choice import Choice

STEPS: Final = 20
_MOST_STEPS: Final = 200
_MOST_WITH_STACKS: Final = 50


class ProfileDialog(ModalScreen[StartProfileBody | None]):
    """Asks for steps and for stacks. Enter alone does nothing: the verb is not the default."""

    BINDINGS: ClassVar[list[BindingType]] = DIALOG_BINDINGS[:1]

    def __init__(self, engine: EngineRow) -> None:
        super().__init__()
        self._engine = engine

    def compose(self) -> ComposeResult:
        """Facts, the number of steps, a choice, buttons."""
        name = clean(self._engine.id)
        yield frame(
            f"Profile engine {name}",
            text_lines(
                [
                    f"The next steps of {name} run slower while they are recorded; it serves on.",
                    "An idle engine makes no steps: then it ends after a minute.",
                    f"Steps, 1 to {_MOST_STEPS}; {_MOST_WITH_STACKS} at most with stacks:",
                ]
            ),
            Input(str(STEPS), placeholder="steps", type="integer", compact=True),
            Choice(
                ["operations only", "with Python stacks: bigger and slower"],
                id="stacks",
            ),
            buttons("Profile", ready=True),
        )

    def on_mount(self) -> None:
        """The focus is on what does no harm."""
        self.query_one("#cancel").focus()

    def _steps(self) -> int | None:
        text = self.query_one(Input).value.strip()
        steps = int(text) if text.isdecimal() else 0
        most = _MOST_WITH_STACKS if self._with_stacks() else _MOST_STEPS
        return steps if 1 <= steps <= most else None

    def _with_stacks(self) -> bool:
        return self.query_one("#stacks", Choice).index == 1

    @on(Input.Changed)
    @on(Choice.Changed)
    def _check(self) -> None:
        self.query_one("#verb", Button).disabled = self._steps() is None

    @on(Input.Submitted)
    def _submitted(self) -> None:
        self.focus_next()

    @on(Button.Pressed)
    def _pressed(self, event: Button.Pressed) -> None:
        if event.button.id != "verb":
            self.dismiss(None)
            return
        self.dismiss(
            StartProfileBody(
                engine=self._engine.id,
                steps=self._steps(),
                duration_s=60.0,
                with_stacks=self._with_stacks(),
            )
        )

    def action_cancel(self) -> None:
        """Do nothing."""
        self.dismiss(None)
