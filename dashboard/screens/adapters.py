"""The adapter list: what is loaded where, and the verbs that change it."""

from collections.abc import Iterable
from typing import ClassVar

from textual import on
from textual.binding import BindingType
from textual.widget import Widget

from appliance.supervisor.admin.schemas import AdapterRow
from dashboard.action import ADAPTERS, FLEET, REQUESTS
from dashboard.messages import GoTo, Order
from dashboard.screens.console import bindings_of
from dashboard.screens.dialogs import Question
from dashboard.screens.load_adapter import LoadAdapterDialog
from dashboard.screens.operator import OperatorScreen
from dashboard.verbs import LoadAdapter, PinAdapter, UnloadAdapter
from dashboard.view.adapters import adapter_rows, adapters_header, adapters_summary, root_lines
from dashboard.view.lines import DIM, Piece, Row, line
from dashboard.view.text import clean, size
from dashboard.widgets.listing import Listing, Panel


class AdaptersScreen(OperatorScreen):
    """Every adapter that the appliance shall have."""

    NAME: ClassVar[str] = ADAPTERS
    BINDINGS: ClassVar[list[BindingType]] = bindings_of(ADAPTERS)

    def body(self) -> Iterable[Widget]:
        """The list, and where adapters may come from."""
        yield Listing(id="adapters", classes="box")
        yield Panel(id="roots")

    def on_mount(self) -> None:
        """The list has the focus."""
        super().on_mount()
        self.query_one("#adapters").focus()

    def paint_body(self) -> None:
        """Fill the list."""
        state, panel = self.session.state, self.query_one("#adapters", Listing)
        width = panel.content_size.width
        rows = adapter_rows(state, self.session.now_s(), width)
        panel.fill(adapters_header(width), rows or [_no_adapters()])
        panel.entitle(f"adapters · {len(state.adapters)}", adapters_summary(state))
        self.query_one("#roots", Panel).show(root_lines(state))

    def selected_adapter(self) -> AdapterRow | None:
        """The adapter under the cursor."""
        name = self.query_one("#adapters", Listing).selected
        return self.session.state.adapters.get(name) if name else None

    def tried_model(self) -> str | None:
        """A prompt that is tried here goes to the selected adapter."""
        adapter = self.selected_adapter()
        return adapter.name if adapter else super().tried_model()

    @on(Listing.Moved)
    def _moved(self) -> None:
        self.paint_lines()

    @on(Listing.Opened)
    def _opened(self) -> None:
        self.action_open()

    def action_open(self) -> None:
        """Show the requests that use the selected adapter."""
        if adapter := self.selected_adapter():
            self.post_message(GoTo(REQUESTS, f"model={adapter.name}"))

    def action_back(self) -> None:
        """Go back to the fleet."""
        self.post_message(GoTo(FLEET))

    def action_load(self) -> None:
        """Ask for name and path, then order a load."""
        if not self._may("load"):
            return

        def order(verb: LoadAdapter | None) -> None:
            if verb is not None:
                self.post_message(Order(verb))

        system = self.session.state.system
        roots = system.adapter_roots if system else []
        self.app.push_screen(LoadAdapterDialog(roots), order)

    def action_unload(self) -> None:
        """Confirm, then order an unload."""
        adapter = self.selected_adapter()
        if not self._may("unload") or adapter is None:
            return
        facts = [
            _users(adapter.running_requests),
            f"Later ones that name it are refused. Its {size(adapter.num_bytes)} are freed.",
            f"Its files stay: {adapter.path}",
        ]
        question = Question(f"Unload adapter {clean(adapter.name)}", facts, "Unload")
        self._confirm(question, Order(UnloadAdapter(adapter.name)))

    def action_pin(self) -> None:
        """Confirm, then pin what is not pinned, or unpin what is."""
        adapter = self.selected_adapter()
        if not self._may("pin") or adapter is None:
            return
        verb, what = "Pin", "It keeps its slot in every engine, whatever other adapters need."
        if adapter.pinned:
            verb, what = "Unpin", "Its slot may go to another adapter when that is needed."
        question = Question(f"{verb} adapter {clean(adapter.name)}", [what], verb)
        self._confirm(question, Order(PinAdapter(adapter.name, pinned=not adapter.pinned)))


def _users(running_requests: int) -> str:
    match running_requests:
        case 0:
            return "No running request uses it."
        case 1:
            return "One running request uses it; it goes on to its end."
        case _:
            return f"{running_requests} running requests use it; they go on to their end."


def _no_adapters() -> Row:
    return Row("", line(Piece("no adapter is loaded · ", DIM), Piece("n", "bold"), " loads one"))
