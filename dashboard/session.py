"""What all screens share: the source, the state so far, and the last word to the operator."""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from appliance.supervisor.admin.schemas import EngineRow, RequestRow, Scope, includes
from dashboard.source.frames import Frame, Source
from dashboard.store.state import State, reduce
from dashboard.verbs import Note
from dashboard.view.events import event_line
from dashboard.view.lines import BAD, GOOD, WARN, Line, Piece, line
from dashboard.view.text import clean

NOTE_STAYS_S: Final = 10.0
_GLYPHS: Final = {GOOD: "✓", WARN: "▲", BAD: "✗"}


class Session:
    """Holds the state; `version` grows when there is something new to paint.

    Args:
        source: Where frames come from and verbs go to.
        now_s: Monotonic clock, in seconds.
    """

    def __init__(self, source: Source, now_s: Callable[[], float] = time.monotonic) -> None:
        self.source = source
        self.now_s = now_s
        self.state = State()
        self.version = 0
        self.is_paused = False
        self._note: Note | None = None
        self._note_s = 0.0

    def take(self, frame: Frame) -> None:
        """Let a frame change the state."""
        self.state = reduce(self.state, frame, self.now_s())
        self.version += 1

    def say(self, note: Note) -> None:
        """Show a note in the message line for a while."""
        self._note, self._note_s = note, self.now_s()
        self.version += 1

    def lost(self, reason: str) -> None:
        """The source itself failed."""
        self.state = replace(self.state, connected=False, link_reason=reason)
        self.version += 1

    def toggle_pause(self) -> None:
        """Freeze or thaw the screen."""
        self.is_paused = not self.is_paused
        self.version += 1

    @property
    def role(self) -> str:
        """The operator's role, or that the screen is frozen."""
        if self.is_paused:
            return "PAUSED"
        me = self.state.whoami
        return f"{'local' if me.transport == 'unix' else 'key'} {me.scope}" if me else ""

    def refusal(self, needed: Scope) -> str | None:
        """Why the operator may not do what needs this scope; None if they may, or who knows."""
        me = self.state.whoami
        if me is None or includes(me.scope, needed):
            return None
        return f"this key has the scope {me.scope}; {needed} is needed"

    def engine(self, engine_id: str | None) -> EngineRow | None:
        """The engine, if it is known."""
        return self.state.engines.get(engine_id) if engine_id else None

    def request(self, request_id: str | None) -> RequestRow | None:
        """The request, if it is known."""
        return self.state.requests.get(request_id) if request_id else None

    def message(self) -> Line:
        """The last word: a note while it is fresh, a broken line, or the newest event."""
        note = self._note
        if note is not None and self.now_s() - self._note_s < NOTE_STAYS_S:
            glyph = _GLYPHS.get(note.tone, "·")
            hint = f" · {note.hint}" if note.hint else ""
            return line(Piece(f" {glyph} {note.text}", note.tone), hint)
        if not self.state.connected and self.state.link_reason:
            return line(Piece(" ✗ trying again: ", BAD), clean(self.state.link_reason))
        return event_line(self.state.events[-1]) if self.state.events else ()
