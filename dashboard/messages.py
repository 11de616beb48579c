"""What screens ask of the app."""

from textual.message import Message

from dashboard.verbs import Note, Verb


class GoTo(Message):
    """Show one of the main screens; `query` filters the request list."""

    def __init__(self, screen_name: str, query: str = "") -> None:
        super().__init__()
        self.screen_name = screen_name
        self.query = query


class OpenTrace(Message):
    """Show the waterfall of a request."""

    def __init__(self, request_id: str) -> None:
        super().__init__()
        self.request_id = request_id


class Order(Message):
    """Carry out what the operator confirmed."""

    def __init__(self, verb: Verb) -> None:
        super().__init__()
        self.verb = verb


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
