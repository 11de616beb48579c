"""One of several options, shown as `(•)` and `( )`: readable without colour."""

from collections.abc import Sequence
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.events import Click
from textual.message import Message

from dashboard.view.lines import BOLD, Line, Piece, line
from dashboard.widgets.listing import Panel


class Choice(Panel):
    """Options one below the other; up and down choose."""

    can_focus = True

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "choose(-1)", show=False),
        Binding("down,j,space", "choose(1)", show=False),
    ]

    class Changed(Message):
        """Another option is chosen."""

    def __init__(self, options: Sequence[str], *, id: str) -> None:  # noqa: A002
        super().__init__(id=id, classes="choice")
        self._options = tuple(options)
        self.index = 0
        self.styles.height = len(self._options)

    def on_mount(self) -> None:
        """Draw."""
        self._draw()

    def watch_has_focus(self, has_focus: bool) -> None:
        """The chosen option shows the focus."""
        super().watch_has_focus(has_focus)
        self._draw()

    def _draw(self) -> None:
        self.show([self._option(at, text) for at, text in enumerate(self._options)])

    def _option(self, at: int, text: str) -> Line:
        if at != self.index:
            return line(f"( ) {text}")
        return line(Piece(f"(•) {text}", "bold reverse" if self.has_focus else BOLD))

    def action_choose(self, by: int) -> None:
        """Choose the next or previous option, around the ends."""
        self._pick((self.index + by) % len(self._options))

    def on_click(self, event: Click) -> None:
        """Choose the option under the pointer."""
        offset = event.get_content_offset(self)
        if offset is not None and offset.y < len(self._options):
            self._pick(offset.y)

    def _pick(self, at: int) -> None:
        self.index = at
        self._draw()
        self.post_message(self.Changed())
