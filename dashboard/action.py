"""One action: its key, where it works, what it needs; and the names of the screens."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Literal

from appliance.supervisor.admin.schemas import Scope

FLEET: Final = "fleet"
REQUESTS: Final = "requests"
ADAPTERS: Final = "adapters"
TRACE: Final = "trace"
ENGINE: Final = "engine"
EVENTS: Final = "events"
MOMENT: Final = "moment"
OPERATIONS: Final = "operations"
TELEMETRY: Final = "telemetry"
PAGE: Final = "page"
HELP: Final = "help"

MAIN_SCREENS: Final = frozenset({FLEET, ENGINE, REQUESTS, ADAPTERS, EVENTS, OPERATIONS})
"""What the number keys lead to."""
OPENED_SCREENS: Final = frozenset({TRACE, MOMENT, TELEMETRY, PAGE})
"""What lies on top of one of those until `esc`."""
EVERYWHERE: Final = MAIN_SCREENS | OPENED_SCREENS


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
