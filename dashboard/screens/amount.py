"""The dialog that asks for a number of the telemetry settings."""

from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.screen import ModalScreen
from textual.widgets import Button, Input

from dashboard.screens.dialogs import DIALOG_BINDINGS, buttons, frame, text_lines
from dashboard.view.telemetry import Setting, read_amount


class AmountDialog(ModalScreen[float | None]):
    """The verb can be pressed when the number is another one, and in range."""

    BINDINGS: ClassVar[list[BindingType]] = DIALOG_BINDINGS[:1]

    def __init__(self, setting: Setting, value: float) -> None:
        super().__init__()
        self._setting = setting
        self._value = value

    def compose(self) -> ComposeResult:
        """What it is, the field, buttons."""
        setting = self._setting
        yield frame(
            f"Set {setting.label}",
            text_lines([f"{setting.label.capitalize()}: {setting.what}."]),
            Input(f"{self._value:g}", max_length=12, compact=True),
            buttons("Set", ready=False),
        )

    def on_mount(self) -> None:
        """Type at once."""
        self.query_one(Input).focus()

    def _amount(self) -> float | None:
        return read_amount(self._setting, self.query_one(Input).value.strip())

    @on(Input.Changed)
    def _check(self) -> None:
        amount = self._amount()
        self.query_one("#verb", Button).disabled = amount is None or amount == self._value

    @on(Input.Submitted)
    def _submitted(self) -> None:
        verb = self.query_one("#verb", Button)
        if not verb.disabled:
            verb.focus()

    @on(Button.Pressed)
    def _pressed(self, event: Button.Pressed) -> None:
        self.dismiss(self._amount() if event.button.id == "verb" else None)

    def action_cancel(self) -> None:
        """Leave it."""
        self.dismiss(None)
