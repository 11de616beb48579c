"""The utility calls about LoRA adapters. A load is answered when its adapter can be used."""

from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from engine.core.batch import AdapterLoading, AdapterRefusedError, AdapterStore
from engine.wire.calls import (
    AdapterList,
    ListAdapters,
    LoadAdapter,
    PinAdapter,
    UnloadAdapter,
)
from engine.wire.messages import UtilityCall


class Pending(Protocol):
    """A call that has not been answered."""

    @property
    def message(self) -> UtilityCall:
        """The call, its id and its deadline."""
        ...


PendingT = TypeVar("PendingT", bound=Pending)


class AdapterCalls(Generic[PendingT]):
    """Runs the calls on the engine's adapters; each is answered exactly once.

    Args:
        adapters: Returns the store; None: the engine takes no adapters.
        reply: Answers a call with its result.
        refuse: Answers a call with a code and a text.
    """

    def __init__(
        self,
        adapters: Callable[[], AdapterStore | None],
        reply: Callable[[PendingT, Any], None],
        refuse: Callable[[PendingT, str, str], None],
    ) -> None:
        self._adapters = adapters
        self._reply = reply
        self._refuse = refuse
        self._loading: list[tuple[PendingT, AdapterLoading]] = []

    def start(
        self, pending: PendingT, call: LoadAdapter | UnloadAdapter | PinAdapter | ListAdapters
    ) -> None:
        """Begin a call."""
        store = self._adapters()
        try:
            match call:
                case ListAdapters():
                    self._reply(pending, store.list() if store else _NO_ADAPTERS)
                case LoadAdapter():
                    self._loading.append((pending, _existing(store).load(call)))
                case UnloadAdapter():
                    self._reply(pending, _existing(store).unload(call.name))
                case PinAdapter():
                    self._reply(pending, _existing(store).pin(call.name, pinned=call.pinned))
        except AdapterRefusedError as error:
            self._refuse(pending, error.code, str(error))

    def advance(self, now_ns: int) -> None:
        """Take in what has been read, answer finished loads, refuse those past their deadline."""
        store = self._adapters()
        if store is None:
            return
        store.advance()
        for item in list(self._loading):
            if self._answer(*item, now_ns):
                self._loading.remove(item)

    def shut_down(self) -> None:
        """Refuse what is pending, end the reading: the engine ends."""
        for pending, loading in self._loading:
            loading.abandon()
            self._refuse(pending, "shutting_down", "the engine is shutting down")
        self._loading.clear()
        store = self._adapters()
        if store is not None:
            store.close()

    def _answer(self, pending: PendingT, loading: AdapterLoading, now_ns: int) -> bool:
        """Answer a load that is done or late; return whether it was."""
        if loading.state is not None:
            self._reply(pending, loading.state)
        elif loading.refusal is not None:
            self._refuse(pending, "invalid", loading.refusal)
        elif pending.message.deadline_ns <= now_ns:
            loading.abandon()
            self._refuse(pending, "deadline_exceeded", "the adapter was not read by the deadline")
        else:
            return False
        return True


_NO_ADAPTERS = AdapterList(adapters=(), max_loras=0, max_cpu_loras=0)


def _existing(store: AdapterStore | None) -> AdapterStore:
    if store is None:
        raise AdapterRefusedError("invalid", "this engine takes no adapters: max_loras is 0")
    return store
