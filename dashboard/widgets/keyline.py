"""The footer: the keys that do something now; those that would be refused are dimmed."""

from collections.abc import Callable

from textual.events import Click

from dashboard.action import Action
from dashboard.actions import footer_actions
from dashboard.view.lines import BOLD, DIM, PLAIN, Line, Piece
from dashboard.widgets.listing import Panel


class KeyLine(Panel):
    """One line of keys, made from the table of actions; a click works like the key."""

    def __init__(self, screen_name: str) -> None:
        super().__init__(id="keys")
        self._screen_name = screen_name
        self._spans: list[tuple[int, int, str]] = []

    def update(self, is_available: Callable[[Action], bool], width: int) -> None:
        """Show what fits in `width` cells."""
        pieces: list[Piece] = [Piece(" ")]
        self._spans = []
        at = 1
        for action in footer_actions(self._screen_name, width):
            live = is_available(action)
            text = f" {action.title} "
            pieces += [
                Piece(action.shown, BOLD if live else DIM),
                Piece(text, PLAIN if live else DIM),
            ]
            end = at + len(action.shown) + len(text)
            self._spans.append((at, end, action.id))
            at = end
        line: Line = tuple(pieces)
        self.show([line])

    async def on_click(self, event: Click) -> None:
        """Do what the key under the pointer does."""
        for start, end, action_id in self._spans:
            if start <= event.x < end:
                await self.screen.run_action(action_id)
