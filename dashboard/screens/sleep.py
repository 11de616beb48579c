"""The dialog that puts an engine to sleep: level, mode, and what that means."""

from typing import ClassVar, Literal

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.screen import ModalScreen
from textual.widgets import Button, Input

from appliance.supervisor.admin.schemas import EngineRow, SleepBody
from dashboard.screens.dialogs import DIALOG_BINDINGS, buttons, frame, text_lines
from dashboard.view.text import size
from dashboard.widgets.choice import Choice


class SleepDialog(ModalScreen[SleepBody | None]):
    """Asks for level and mode. Level 2 wants the engine's id typed."""

    BINDINGS: ClassVar[list[BindingType]] = DIALOG_BINDINGS[:1]

    def __init__(self, engine: EngineRow) -> None:
        super().__init__()
        self._engine = engine

    def compose(self) -> ComposeResult:
        """Facts, two choices, the field for level 2, buttons."""
        engine = self._engine
        yield frame(
            f"Sleep engine {engine.id}",
            text_lines(_facts(engine)),
            Choice(
                [
                    "level 1: drop weights and KV cache, keep the file index",
                    "level 2: keep nothing; waking reads everything again",
                ],
                id="level",
            ),
            Choice(
                ["wait: let running requests finish", "abort: end them now with an error"],
                id="mode",
            ),
            Input(placeholder=f"type {engine.id} to confirm level 2", compact=True),
            buttons("Sleep", ready=True),
        )

    def on_mount(self) -> None:
        """The focus is on what does no harm."""
        self.query_one(Input).display = False
        self.query_one("#cancel").focus()

    def _level(self) -> Literal[1, 2]:
        return 2 if self.query_one("#level", Choice).index == 1 else 1

    def _mode(self) -> Literal["wait", "abort"]:
        return "abort" if self.query_one("#mode", Choice).index == 1 else "wait"

    @on(Choice.Changed)
    @on(Input.Changed)
    def _check(self) -> None:
        field = self.query_one(Input)
        deep = self._level() == 2  # noqa: PLR2004 - the level that loses everything
        field.display = deep
        typed = field.value.strip() == self._engine.id
        self.query_one("#verb", Button).disabled = deep and not typed

    @on(Button.Pressed)
    def _pressed(self, event: Button.Pressed) -> None:
        if event.button.id == "verb":
            self.dismiss(SleepBody(level=self._level(), mode=self._mode(), timeout_s=60.0))
        else:
            self.dismiss(None)

    def action_cancel(self) -> None:
        """Do nothing."""
        self.dismiss(None)


def _facts(engine: EngineRow) -> list[str]:
    held = (engine.weights_bytes or 0) + (engine.kv_cache_bytes or 0)
    frees = f" It holds {size(held)} of weights and KV cache." if held else ""
    return [
        f"{engine.running} running and {engine.waiting} waiting requests are affected.{frees}",
        "A later request wakes it, if the server is set up that way.",
    ]
