"""The one table of actions: footer, help, palette, bindings and roles are made from it."""

from collections.abc import Iterator
from typing import Final

from dashboard.action import Action
from dashboard.action_verbs import VERBS
from dashboard.action_views import VIEWS

ACTIONS: Final = (*VERBS, *VIEWS)


def actions_on(screen: str) -> Iterator[Action]:
    """The actions that work on a screen, in the order of the table."""
    return (action for action in ACTIONS if screen in action.screens)


def find_action(action_id: str, screen: str) -> Action | None:
    """The action with this id, if it works on the screen."""
    return next((action for action in actions_on(screen) if action.id == action_id), None)


def footer_actions(screen: str, width: int) -> list[Action]:
    """The actions that fit into a footer of `width` cells, most useful first."""
    room = width - 1
    shown: list[Action] = []
    for action in sorted(actions_on(screen), key=lambda action: action.rank):
        if action.id != screen and room >= (cells := len(action.shown) + len(action.title) + 2):
            shown.append(action)
            room -= cells
    return shown
