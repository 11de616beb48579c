"""A panel of lines that repaints only what changed, with a cursor if its rows can be selected."""

from collections.abc import Sequence
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.events import Click, MouseScrollDown, MouseScrollUp, Resize
from textual.geometry import Region
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from dashboard.view.lines import BOLD, Line, Piece, Row

_CURSOR = Style.parse("reverse")
_MARK = "▸"


class Panel(Widget):
    """Draws the lines it was last given; a line that did not change is not drawn again."""

    can_focus = False
    ALLOW_SELECT = False

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:  # noqa: A002
        super().__init__(id=id, classes=classes, markup=False)
        self._lines: tuple[Line, ...] = ()
        self._titles = ("", "")

    def show(self, lines: Sequence[Line]) -> None:
        """Replace the content."""
        before, self._lines = self._lines, tuple(lines)
        self._repaint(before, self._lines)

    def entitle(self, title: str, subtitle: str = "") -> None:
        """Set the texts in the frame, taken literally."""
        if (title, subtitle) != self._titles:
            self._titles = (title, subtitle)
            self.border_title = Content(title)  # pyright: ignore[reportAttributeAccessIssue]
            self.border_subtitle = Content(subtitle)  # pyright: ignore[reportAttributeAccessIssue]

    def _repaint(self, before: Sequence[Line], after: Sequence[Line]) -> None:
        width = self.size.width
        changed = [
            Region(0, y, width, 1)
            for y in range(max(len(before), len(after)))
            if _at(before, y) != _at(after, y)
        ]
        if changed and width:
            self.refresh(*changed)

    def render_line(self, y: int) -> Strip:
        """Draw one line of the content."""
        return self._strip(_at(self._lines, y), Style.null())

    def _strip(self, line: Line, over: Style) -> Strip:
        base = self.rich_style
        segments = [Segment(piece.text, base + _style(piece) + over) for piece in line]
        return Strip(segments).adjust_cell_length(self.size.width, base + over)


class Listing(Panel):
    """Rows with a cursor that stays on its row when others come and go.

    On the first row it stays first: who did not move sees what is new.
    """

    can_focus = True

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", show=False),
        Binding("down,j", "move(1)", show=False),
        Binding("pageup", "page(-1)", show=False),
        Binding("pagedown", "page(1)", show=False),
        Binding("home,g", "edge(False)", show=False),
        Binding("end,G", "edge(True)", show=False),
    ]

    class Moved(Message):
        """The cursor stands on another row."""

        def __init__(self, listing: "Listing") -> None:
            super().__init__()
            self.listing = listing

        @property
        def control(self) -> "Listing":
            """The listing."""
            return self.listing

    class Opened(Moved):
        """A row was clicked twice."""

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:  # noqa: A002
        super().__init__(id=id, classes=classes)
        self._header: Line = ()
        self._rows: tuple[Row, ...] = ()
        self._cursor = 0
        self._top = 0
        self._is_pinned = False
        self._drawn: tuple[Line, ...] = ()

    @property
    def selected(self) -> str | None:
        """Key of the row under the cursor."""
        row = self._rows[self._cursor] if self._rows else None
        return row.key if row and row.key else None

    @property
    def is_at_end(self) -> bool:
        """Whether the cursor stands on the last row."""
        return self._cursor >= len(self._rows) - 1

    def fill(self, header: Line, rows: Sequence[Row]) -> None:
        """Replace the rows. The cursor follows its row, unless it was left on the first one."""
        selected = self.selected
        self._header, self._rows = header, tuple(rows)
        self._cursor = max(0, min(self._cursor, len(rows) - 1))
        if self._is_pinned and selected != self.selected:
            self._cursor = next(
                (at for at, row in enumerate(rows) if row.key == selected and selected),
                self._cursor,
            )
        self._settle()
        if selected != self.selected:
            self.post_message(self.Moved(self))

    def select(self, key: str) -> None:
        """Put the cursor on the row with this key, if there is one."""
        for at, row in enumerate(self._rows):
            if row.key == key:
                self._go(at)

    def position(self) -> str:
        """`3-12 of 40`, or nothing while all rows fit."""
        height = self._body_height()
        if len(self._rows) <= height:
            return ""
        last = min(len(self._rows), self._top + height)
        return f"{self._top + 1}-{last} of {len(self._rows)}"

    def _body_height(self) -> int:
        return max(1, self.size.height - (1 if self._header else 0))

    def _settle(self) -> None:
        """Keep cursor and scroll position within the rows, then draw what changed."""
        self._cursor = max(0, min(self._cursor, len(self._rows) - 1))
        height = self._body_height()
        self._top = max(0, min(self._top, len(self._rows) - height))
        self._top = max(self._cursor - height + 1, min(self._top, self._cursor))
        before, self._drawn = self._drawn, self._visible()
        self._repaint(before, self._drawn)

    def _visible(self) -> tuple[Line, ...]:
        header = (self._header,) if self._header else ()
        window = self._rows[self._top : self._top + self._body_height()]
        return (*header, *(self._marked(self._top + at, row) for at, row in enumerate(window)))

    def _marked(self, at: int, row: Row) -> Line:
        """Put the cursor's mark before the row; its style tells whether the panel has the focus."""
        if at != self._cursor or not row.key:
            return (Piece(" "), *row.line)
        mark = Piece(_MARK, "bold reverse" if self.has_focus else BOLD)
        return (mark, *row.line)

    def render_line(self, y: int) -> Strip:
        """Draw the header or a visible row."""
        line = _at(self._drawn, y)
        focused = bool(line) and line[0] == Piece(_MARK, "bold reverse")
        return self._strip(line, _CURSOR if focused else Style.null())

    def _go(self, at: int) -> None:
        before = self._cursor
        self._cursor = max(0, min(at, len(self._rows) - 1))
        self._is_pinned = self._cursor > 0
        self._settle()
        if self._cursor != before:
            self.post_message(self.Moved(self))

    def action_move(self, by: int) -> None:
        """Move the cursor by rows."""
        self._go(self._cursor + by)

    def action_page(self, direction: int) -> None:
        """Move the cursor by a screenful."""
        self._go(self._cursor + direction * self._body_height())

    def action_edge(self, end: bool) -> None:
        """Move the cursor to the first or last row."""
        self._go(len(self._rows) - 1 if end else 0)

    def on_mouse_scroll_down(self, event: MouseScrollDown) -> None:
        """The wheel moves the cursor."""
        event.stop()
        self.action_move(1)

    def on_mouse_scroll_up(self, event: MouseScrollUp) -> None:
        """The wheel moves the cursor."""
        event.stop()
        self.action_move(-1)

    def on_click(self, event: Click) -> None:
        """A click selects, a double click opens."""
        offset = event.get_content_offset(self)
        if offset is None:
            return
        at = self._top + offset.y - (1 if self._header else 0)
        if 0 <= at < len(self._rows):
            self._go(at)
            if event.chain > 1:
                self.post_message(self.Opened(self))

    def on_resize(self, _event: Resize) -> None:
        """The window over the rows has another height."""
        self._settle()

    def watch_has_focus(self, has_focus: bool) -> None:
        """The cursor shows the focus."""
        super().watch_has_focus(has_focus)
        self._settle()


def _at(lines: Sequence[Line], y: int) -> Line:
    return lines[y] if y < len(lines) else ()


def _style(piece: Piece) -> Style:
    return Style.parse(piece.tone) if piece.tone else Style.null()
