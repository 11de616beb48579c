"""What screens ask of the app."""

from collections.abc import Callable

from textual.message import Message

from dashboard.verbs import Note, Verb
from dashboard.view.moment import AskedMoment
from dashboard.view.page import Page


class GoTo(Message):
    """Show one of the main screens; `query` filters a list, or names an engine."""

    def __init__(self, screen_name: str, query: str = "") -> None:
        super().__init__()
        self.screen_name = screen_name
        self.query = query


class OpenTrace(Message):
    """Show the waterfall of a request."""

    def __init__(self, request_id: str) -> None:
        super().__init__()
        self.request_id = request_id


class OpenMoment(Message):
    """Show what happened at a time."""

    def __init__(self, asked: AskedMoment) -> None:
        super().__init__()
        self.asked = asked


class OpenTelemetry(Message):
    """Show what is recorded and exported."""


class OpenPage(Message):
    """Show a text to scroll through; `reload` makes it anew, until it is final."""

    def __init__(self, page: Page, reload: Callable[[], Page | None] | None = None) -> None:
        super().__init__()
        self.page = page
        self.reload = reload


class Order(Message):
    """Carry out what the operator confirmed."""

    def __init__(self, verb: Verb) -> None:
        super().__init__()
        self.verb = verb


class DumpStacks(Message):
    """Fetch the stacks of an engine, as confirmed, and show them."""

    def __init__(self, engine_id: str) -> None:
        super().__init__()
        self.engine_id = engine_id


class TryPrompt(Message):
    """Send a prompt, then open its trace."""

    def __init__(self, model: str, prompt: str) -> None:
        super().__init__()
        self.model = model
        self.prompt = prompt


class Say(Message):
    """Show a note."""

    def __init__(self, note: Note) -> None:
        super().__init__()
        self.note = note
