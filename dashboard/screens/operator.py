"""Screens on which an operator can order something of engines and requests."""

from appliance.supervisor.admin.schemas import SleepBody, StartProfileBody
from dashboard.messages import DumpStacks, Order, Say, TryPrompt
from dashboard.screens.console import ConsoleScreen
from dashboard.screens.dialogs import PromptDialog, Question
from dashboard.screens.profile import ProfileDialog
from dashboard.screens.sleep import SleepDialog
from dashboard.verbs import Abort, Note, Profile, Restart, Sleep, Wake
from dashboard.view.lines import WARN
from dashboard.view.text import clean, short_id, size


class OperatorScreen(ConsoleScreen):
    """A screen with the verbs of `dashboard.action_verbs`; each asks before it orders."""

    def action_sleep(self) -> None:
        """Ask for level and mode, then order sleep."""
        engine = self.selected_engine()
        if not self._may("sleep") or engine is None:
            return

        def order(body: SleepBody | None) -> None:
            if body is not None:
                self.post_message(Order(Sleep(engine.id, body)))

        self.app.push_screen(SleepDialog(engine), order)

    def action_wake(self) -> None:
        """Confirm, then order wake."""
        engine = self.selected_engine()
        if not self._may("wake") or engine is None:
            return
        needs = (
            f"It takes {size(engine.weights_bytes)} of weights back."
            if engine.weights_bytes
            else ""
        )
        question = Question(f"Wake engine {engine.id}", [f"Model {engine.model}.", needs], "Wake")
        self._confirm(question, Order(Wake(engine.id)))

    def action_restart(self) -> None:
        """Confirm by the typed id, then order a restart."""
        engine = self.selected_engine()
        if not self._may("restart") or engine is None:
            return
        affected = f"{engine.running} running and {engine.waiting} waiting requests are on it."
        question = Question(
            f"Restart engine {engine.id}",
            [affected, "Streams end with an error; requests without a token are tried again."],
            "Restart",
            typed=engine.id,
        )
        self._confirm(question, Order(Restart(engine.id)))

    def action_abort(self) -> None:
        """Confirm, then order an abort."""
        request = self.selected_request()
        if not self._may("abort") or request is None:
            return
        so_far = f"{request.completion_tokens} tokens so far, key {request.key_id or 'none'}."
        question = Question(
            f"Abort {short_id(request.id)}",
            [f"{request.model or 'no model'} on {request.engine or 'no engine'}.", so_far],
            "Abort",
        )
        self._confirm(question, Order(Abort(request.id)))

    def action_profile(self) -> None:
        """Ask how much to record, then order a profile."""
        engine = self.selected_engine()
        if not self._may("profile") or engine is None:
            return

        def order(body: StartProfileBody | None) -> None:
            if body is not None:
                self.post_message(Order(Profile(body)))

        self.app.push_screen(ProfileDialog(engine), order)

    def action_stacks(self) -> None:
        """Confirm, then dump the stacks of the engine's process."""
        engine = self.selected_engine()
        if not self._may("stacks") or engine is None:
            return
        facts = [
            f"Shows where every Python thread of {clean(engine.id)} (pid {engine.pid}) is.",
            "The process stands still for some milliseconds while it is read.",
        ]
        question = Question(f"Dump stacks of {clean(engine.id)}", facts, "Dump")
        self._confirm(question, DumpStacks(engine.id))

    def action_try_prompt(self) -> None:
        """Ask for a prompt, then send it to the model that is meant here."""
        model = self.tried_model()
        if model is None:
            self.post_message(Say(Note("no engine is known yet", WARN)))
            return

        def send(prompt: str | None) -> None:
            if prompt:
                self.post_message(TryPrompt(model, prompt))

        self.app.push_screen(PromptDialog(model), send)
