"""All keys of a screen, from the table of actions."""

from textwrap import wrap
from typing import ClassVar, Final

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import ModalScreen

from dashboard.action import Action, Tier
from dashboard.actions import ACTIONS
from dashboard.view.lines import BOLD, DIM, PLAIN, Line, Piece, Row, fit, line
from dashboard.widgets.listing import Listing

_TEXT_WIDTH: Final = 55
_MOVES: Final = (
    ("↑↓ jk", "move, pgup pgdn home end too"),
    ("tab", "next panel"),
    ("^p", "palette: every action by name, and themes"),
)


class HelpScreen(ModalScreen[None]):
    """A list of keys: those of the screen below first."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,question_mark", "close", "close", show=False)
    ]

    def __init__(self, screen_name: str) -> None:
        super().__init__()
        self._screen_name = screen_name

    def compose(self) -> ComposeResult:
        """One scrolling list."""
        yield Listing(id="help")

    def on_mount(self) -> None:
        """Fill the list once its size is known."""
        self.call_after_refresh(self._fill)

    def _fill(self) -> None:
        listing = self.query_one(Listing)
        listing.entitle("help", "esc close")
        listing.fill((), [Row("", text) for text in help_lines(self._screen_name)])
        listing.focus()

    def action_close(self) -> None:
        """Go back."""
        self.dismiss()


def help_lines(screen_name: str) -> list[Line]:
    """The lines of the help screen."""
    here = [action for action in ACTIONS if screen_name in action.screens]
    elsewhere = [action for action in ACTIONS if screen_name not in action.screens]
    lines = [_title(f"on this screen ({screen_name})")]
    for action in here:
        lines += _lines(action)
    lines += [line(Piece(fit(keys, 8), BOLD), text) for keys, text in _MOVES]
    lines += [(), _title("on other screens")]
    for action in elsewhere:
        lines += _lines(action)
    return [*lines, (), *_LEGEND]


def _title(text: str) -> Line:
    return line(Piece(text, DIM))


def _lines(action: Action) -> list[Line]:
    asks = {Tier.NONE: "", Tier.CONFIRM: " It asks.", Tier.TYPE_ID: " It asks for the id."}
    text = wrap(action.help + asks[action.tier], _TEXT_WIDTH)
    first = line(Piece(fit(action.shown, 8), BOLD), Piece(fit(action.label, 10), PLAIN), text[0])
    rest = [line(f"{'':<18}{more}") for more in text[1:]]
    route = [line(Piece(f"{'':<18}{action.route}", DIM))] if action.route else []
    return [first, *rest, *route]


_LEGEND: Final = (
    line(Piece("marks", DIM)),
    line("● ready  ◐ starting  ◒ draining  ☾ asleep  ◑ waking"),
    line("↻ backoff  ✗ failed  ○ stopped"),
    line("adapters: e0● in a slot  e0• in memory  e0○ not there  e0✗ refused"),
    line("◌ waiting  ◔ prefill  ▶ decode  ✓ done  ■ aborted  ⊘ refused  ▲ look here"),
)
