"""The command palette: every action of the screen by its name."""

from collections.abc import Iterator
from functools import partial

from textual.command import DiscoveryHit, Hit, Hits, Provider

from dashboard.action import Action
from dashboard.actions import actions_on
from dashboard.screens.console import ConsoleScreen


class ActionCommands(Provider):
    """Finds actions of the table; what would be refused says so."""

    def _offers(self) -> Iterator[tuple[Action, str]]:
        screen = self.screen
        if isinstance(screen, ConsoleScreen):
            for action in actions_on(screen.NAME):
                obstacle = screen.obstacle(action)
                yield action, f"{action.help} [not now: {obstacle}]" if obstacle else action.help

    async def discover(self) -> Hits:
        """All of them, before anything is typed."""
        for action, text in self._offers():
            yield DiscoveryHit(action.title, partial(self.screen.run_action, action.id), help=text)

    async def search(self, query: str) -> Hits:
        """Those that fit what is typed."""
        matcher = self.matcher(query)
        for action, text in self._offers():
            name = f"{action.title} {action.help}"
            score = matcher.match(name)
            if score > 0:
                command = partial(self.screen.run_action, action.id)
                yield Hit(score, action.title, command, text=action.title, help=text)
