"""The one table of actions: footer, help, palette, bindings and roles are made from it."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Literal

from appliance.supervisor.admin.schemas import Scope

FLEET: Final = "fleet"
REQUESTS: Final = "requests"
ADAPTERS: Final = "adapters"
TRACE: Final = "trace"
HELP: Final = "help"


class Tier(StrEnum):
    """How hard an action is to do by mistake."""

    NONE = "none"
    CONFIRM = "confirm"
    """A dialog whose default is to do nothing."""
    TYPE_ID = "type the id"
    """The dialog also wants the engine's id typed."""


@dataclass(frozen=True, slots=True)
class Action:
    """Something a key does."""

    id: str
    """Also the name of the method: `action_<id>`."""
    keys: str
    """Comma separated, as Textual spells them."""
    shown: str
    """The key as people read it."""
    label: str
    help: str
    screens: frozenset[str]
    """Where it works."""
    of: Literal["engine", "request", "adapter"] | None = None
    """What has to be selected."""
    verb: str | None = None
    """Its name in `allowed_actions`; an action that is not allowed is dimmed."""
    tier: Tier = Tier.NONE
    scope: Scope = "viewer"
    """What a key needs for it; an action that the key is too small for is dimmed."""
    route: str | None = None
    rank: int = 50
    """Order in the footer; what does not fit is left out from the end."""

    @property
    def title(self) -> str:
        """For the palette."""
        return f"{self.label}{'' if self.tier is Tier.NONE else '…'}"


_LISTS: Final = frozenset({FLEET, REQUESTS, ADAPTERS})
_EVERYWHERE: Final = frozenset({FLEET, REQUESTS, ADAPTERS, TRACE})

ACTIONS: Final = (
    Action(
        id="back",
        keys="escape",
        shown="esc",
        label="back",
        help="Go back; on the request list, first drop the filter.",
        screens=frozenset({REQUESTS, ADAPTERS, TRACE, HELP}),
        rank=5,
    ),
    Action(
        id="open",
        keys="enter",
        shown="↵",
        label="open",
        help="Open the trace of the request, or the requests of the engine or adapter.",
        screens=_LISTS,
        rank=10,
    ),
    Action(
        id="fold",
        keys="enter",
        shown="↵",
        label="fold",
        help="Open or close the span, or its folded messages; right opens, left closes.",
        screens=frozenset({TRACE}),
        rank=10,
    ),
    Action(
        id="axis",
        keys="z",
        shown="z",
        label="axis",
        help="One time scale, or one that is compressed after the first token.",
        screens=frozenset({TRACE}),
        rank=20,
    ),
    Action(
        id="sleep",
        keys="s",
        shown="s",
        label="sleep",
        help="Put the engine to sleep: it gives its memory back.",
        screens=frozenset({FLEET}),
        of="engine",
        verb="sleep",
        scope="operator",
        tier=Tier.CONFIRM,
        route="POST /admin/v1/engines/{id}/sleep",
        rank=11,
    ),
    Action(
        id="wake",
        keys="w",
        shown="w",
        label="wake",
        help="Wake the engine.",
        screens=frozenset({FLEET}),
        of="engine",
        verb="wake",
        scope="operator",
        tier=Tier.CONFIRM,
        route="POST /admin/v1/engines/{id}/wake",
        rank=12,
    ),
    Action(
        id="restart",
        keys="r",
        shown="r",
        label="restart",
        help="Restart the engine; what it runs ends with an error.",
        screens=frozenset({FLEET}),
        of="engine",
        verb="restart",
        scope="operator",
        tier=Tier.TYPE_ID,
        route="POST /admin/v1/engines/{id}/restart",
        rank=13,
    ),
    Action(
        id="abort",
        keys="x",
        shown="x",
        label="abort",
        help="End the selected request; its client is told.",
        scope="operator",
        screens=frozenset({FLEET, REQUESTS, TRACE}),
        of="request",
        tier=Tier.CONFIRM,
        route="DELETE /admin/v1/requests/{id}",
        rank=14,
    ),
    Action(
        id="load",
        keys="n",
        shown="n",
        label="load",
        help="Load an adapter from a directory of the server, on all engines or on none.",
        screens=frozenset({ADAPTERS}),
        scope="operator",
        tier=Tier.CONFIRM,
        route="PUT /admin/v1/adapters/{name}",
        rank=11,
    ),
    Action(
        id="unload",
        keys="u",
        shown="u",
        label="unload",
        help="Unload the adapter; requests that run with it go on to their end.",
        screens=frozenset({ADAPTERS}),
        of="adapter",
        scope="operator",
        tier=Tier.CONFIRM,
        route="DELETE /admin/v1/adapters/{name}",
        rank=12,
    ),
    Action(
        id="pin",
        keys="i",
        shown="i",
        label="pin",
        help="Keep the adapter in its slot; pinned already, let it make room for others.",
        screens=frozenset({ADAPTERS}),
        of="adapter",
        scope="operator",
        tier=Tier.CONFIRM,
        route="POST /admin/v1/adapters/{name}/pin",
        rank=13,
    ),
    Action(
        id="try_prompt",
        keys="t",
        shown="t",
        label="try",
        help="Send a prompt and open its trace.",
        screens=_EVERYWHERE,
        route="POST /v1/chat/completions",
        rank=15,
    ),
    Action(
        id="filter",
        keys="slash",
        shown="/",
        label="filter",
        help="Show requests that fit: words, field=value, !not.",
        screens=frozenset({REQUESTS}),
        rank=16,
    ),
    Action(
        id="pause",
        keys="p",
        shown="p",
        label="pause",
        help="Freeze the screen; data keeps coming in.",
        screens=_LISTS,
        rank=45,
    ),
    Action(
        id="fleet",
        keys="1",
        shown="1",
        label="fleet",
        help="The engines, their load, and what they serve.",
        screens=_EVERYWHERE,
        rank=30,
    ),
    Action(
        id="requests",
        keys="3",
        shown="3",
        label="requests",
        help="Requests in flight and the last ones that ended.",
        screens=_EVERYWHERE,
        rank=18,
    ),
    Action(
        id="adapters",
        keys="5",
        shown="5",
        label="adapters",
        help="LoRA adapters: where they are loaded, how big they are, who uses them.",
        screens=_EVERYWHERE,
        rank=31,
    ),
    Action(
        id="help",
        keys="question_mark",
        shown="?",
        label="help",
        help="All keys.",
        screens=_EVERYWHERE,
        rank=19,
    ),
    Action(
        id="quit",
        keys="q",
        shown="q",
        label="quit",
        help="Leave the dashboard; nothing on the server stops.",
        screens=_EVERYWHERE | {HELP},
        rank=20,
    ),
)


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
