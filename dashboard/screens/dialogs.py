"""Small dialogs: confirm something, and type a prompt."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widget import Widget
from textual.widgets import Button, Input, Static

from dashboard.view.text import clean

DIALOG_BINDINGS: list[BindingType] = [
    Binding("escape", "cancel", "cancel", show=False),
    Binding("left", "app.focus_previous", show=False),
    Binding("right", "app.focus_next", show=False),
]


@dataclass(frozen=True, slots=True)
class Question:
    """What a dialog asks.

    `typed` is what has to be typed before the verb can be pressed; None: a press is enough.
    """

    title: str
    lines: Sequence[str]
    verb: str
    typed: str | None = None


def text_lines(lines: Sequence[str]) -> Static:
    """Lines taken literally."""
    text = "\n".join(clean(line) for line in lines if line)
    return Static(Content(text), classes="lines", markup=False)


def frame(title: str, *children: Widget) -> Vertical:
    """The box of a dialog."""
    box = Vertical(*children, classes="dialog")
    box.border_title = Content(clean(title))  # pyright: ignore[reportAttributeAccessIssue]
    box.border_subtitle = "esc cancel"
    return box


def buttons(verb: str, *, ready: bool) -> Horizontal:
    """The verb, and cancelling, which has the focus."""
    return Horizontal(
        Button(Content(f"[ {verb} ]"), id="verb", disabled=not ready, compact=True),
        Button(Content("[ Cancel ]"), id="cancel", compact=True),
        classes="buttons",
    )


class ConfirmDialog(ModalScreen[bool]):
    """Asks before a verb. Enter alone does nothing: the verb is not the default."""

    BINDINGS: ClassVar[list[BindingType]] = DIALOG_BINDINGS

    def __init__(self, question: Question) -> None:
        super().__init__()
        self._question = question

    def compose(self) -> ComposeResult:
        """Facts, the field to type in, buttons."""
        question = self._question
        children: list[Widget] = [text_lines(question.lines)]
        if question.typed is not None:
            children.append(Input(placeholder=f"type {question.typed} to confirm", compact=True))
        children.append(buttons(question.verb, ready=question.typed is None))
        yield frame(question.title, *children)

    def on_mount(self) -> None:
        """The focus is on what does no harm."""
        wanted = "#cancel" if self._question.typed is None else "Input"
        self.query_one(wanted).focus()

    @on(Input.Changed)
    def _typed(self, event: Input.Changed) -> None:
        ready = event.value.strip() == self._question.typed
        self.query_one("#verb", Button).disabled = not ready

    @on(Input.Submitted)
    def _submitted(self) -> None:
        verb = self.query_one("#verb", Button)
        if not verb.disabled:
            verb.focus()

    @on(Button.Pressed)
    def _pressed(self, event: Button.Pressed) -> None:
        self.dismiss(event.button.id == "verb")

    def action_cancel(self) -> None:
        """Do nothing."""
        self.dismiss(False)


class PromptDialog(ModalScreen[str]):
    """Asks for a prompt; enter sends it."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "cancel", "cancel", show=False)]
    EXAMPLE: ClassVar = "Name three parts of a ship."

    def __init__(self, model: str) -> None:
        super().__init__()
        self._model = model

    def compose(self) -> ComposeResult:
        """A line of explanation and the field."""
        yield frame(
            f"Try {self._model}",
            text_lines(
                ["Enter sends this as a chat request; its trace opens when it is answered."]
            ),
            Input(value=self.EXAMPLE, max_length=2000, compact=True),
        )

    def on_mount(self) -> None:
        """Type at once."""
        self.query_one(Input).focus()

    @on(Input.Submitted)
    def _send(self, event: Input.Submitted) -> None:
        self.dismiss(event.value.strip())

    def action_cancel(self) -> None:
        """Send nothing."""
        self.dismiss("")
