"""The form that loads a LoRA adapter: its name and its path on the server."""

from collections.abc import Sequence
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.screen import ModalScreen
from textual.widgets import Button, Input

from dashboard.screens.dialogs import DIALOG_BINDINGS, buttons, frame, text_lines
from dashboard.verbs import LoadAdapter
from dashboard.widgets.choice import Choice

_MAX_NAME = 64
_MAX_PATH = 4096


class LoadAdapterDialog(ModalScreen[LoadAdapter | None]):
    """Asks for name, path and pin. The verb is pressed, enter in a field does not do it.

    Args:
        roots: Directories that the path may be in; the first one is filled in.
    """

    BINDINGS: ClassVar[list[BindingType]] = DIALOG_BINDINGS[:1]

    def __init__(self, roots: Sequence[str]) -> None:
        super().__init__()
        self._roots = roots

    def compose(self) -> ComposeResult:
        """What it does, two fields, a choice, buttons."""
        root = f"{self._roots[0].rstrip('/')}/" if self._roots else ""
        yield frame(
            "Load adapter",
            text_lines(
                [
                    "All engines load it, or none. Requests that run under its name keep what they"
                    " have; later ones get what is loaded now.",
                    self._where(),
                ]
            ),
            Input(
                placeholder="name: requests give it as their model",
                id="name",
                max_length=_MAX_NAME,
                compact=True,
            ),
            Input(
                root,
                placeholder="path on the server",
                id="path",
                max_length=_MAX_PATH,
                select_on_focus=False,  # what is typed goes on after the root
                compact=True,
            ),
            Choice(["not pinned: makes room for others", "pinned: keeps its slot"], id="pinned"),
            buttons("Load", ready=False),
        )

    def on_mount(self) -> None:
        """Type the name first."""
        self.query_one("#name").focus()

    @on(Input.Changed)
    def _check(self) -> None:
        self.query_one("#verb", Button).disabled = self._order() is None

    @on(Input.Submitted)
    def _submitted(self) -> None:
        self.focus_next()

    @on(Button.Pressed)
    def _pressed(self, event: Button.Pressed) -> None:
        self.dismiss(self._order() if event.button.id == "verb" else None)

    def _where(self) -> str:
        roots = " or ".join(self._roots)
        return f"Its path is on the server, below {roots}." if roots else ""

    def _order(self) -> LoadAdapter | None:
        name = self.query_one("#name", Input).value.strip()
        path = self.query_one("#path", Input).value.strip()
        if not name or not path.startswith("/"):
            return None
        return LoadAdapter(name, path, pinned=self.query_one("#pinned", Choice).index == 1)

    def action_cancel(self) -> None:
        """Do nothing."""
        self.dismiss(None)
