"""Asks for a time: what happened then?"""

from datetime import datetime
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from dashboard.screens.dialogs import frame, text_lines
from dashboard.view.moment import AskedMoment, read_time


class MomentDialog(ModalScreen[AskedMoment | None]):
    """Enter shows the moment; a time that cannot be read is said at once."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "cancel", "cancel", show=False)]

    def __init__(self, now: datetime) -> None:
        super().__init__()
        self._now = now

    def compose(self) -> ComposeResult:
        """The field, and how what is typed is understood."""
        yield frame(
            "What happened at …",
            text_lines(
                ["A time of day, or how long ago: 14:22, 14:22:31, 5m, 2h, or a date with it."]
            ),
            Input(value=self._now.astimezone().strftime("%H:%M"), max_length=40, compact=True),
            Static("", id="read", markup=False),
        )

    def on_mount(self) -> None:
        """Type at once; the present time is there to be changed."""
        self.query_one(Input).focus()

    @on(Input.Changed)
    def _typed(self, event: Input.Changed) -> None:
        at = read_time(event.value, self._now)
        day = "" if at is None else f"{at.astimezone():%Y-%m-%d} "
        text = "this is no time" if at is None else f"shows {day}{AskedMoment(at).told}"
        self.query_one("#read", Static).update(text)

    @on(Input.Submitted)
    def _asked(self, event: Input.Submitted) -> None:
        at = read_time(event.value, self._now)
        if at is not None:
            self.dismiss(AskedMoment(at))

    def action_cancel(self) -> None:
        """Show nothing."""
        self.dismiss(None)
