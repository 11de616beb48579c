"""What a scheduling policy is asked and told. As it stands it serves first come, first served."""

from collections.abc import Collection, Hashable
from typing import Any, ClassVar

from engine.core.request import EngineRequest

Rank = tuple[Any, ...]
"""Compared with others of the same policy; lower is served first."""


class Policy:
    """Who is next, who gives way. Pure: it knows what it is told, and no clock.

    A policy overrides what it wants otherwise. Waiting requests stand in lanes; inside a lane they
    keep the order of their arrival, and ranks must agree with that. Ranks of whole lanes may change
    at any time.

    Args:
        max_num_seqs: Requests that can run at once.
        max_num_tokens: Tokens that the KV cache holds.
    """

    takes_places: ClassVar[bool] = False
    """Whether `victim_for` may return anyone."""

    def __init__(self, max_num_seqs: int, max_num_tokens: int) -> None:
        self.max_num_seqs = max_num_seqs
        self.max_num_tokens = max_num_tokens

    # ------------------------------------------------------------ asked

    def lane(self, request: EngineRequest) -> Hashable:
        """Return the lane in which a request waits."""
        return None

    def rank(self, request: EngineRequest) -> Rank:
        """Return its place: the lowest is next and computed first, the highest gives way first."""
        return (request.arrival,)

    def has_place(self, request: EngineRequest, running: Collection[EngineRequest]) -> bool:
        """Whether a request may start to run beside those that do."""
        return len(running) < self.max_num_seqs

    def victim_for(
        self,
        request: EngineRequest,
        running: Collection[EngineRequest],
        gone: Collection[EngineRequest],
    ) -> EngineRequest | None:
        """Return who may have to give way to a waiting request; None: it waits its turn.

        A request for which there is one enters before the running ones get their share of a step,
        whether the other has to give way or not.

        Args:
            request: At the head of its lane.
            running: Those that run, but for `gone`.
            gone: Those that would give way already.
        """
        return None

    # ------------------------------------------------------------ told

    def note_waiting(self, request: EngineRequest) -> None:
        """A request begins to wait: it arrived, or (`running` is true) it gave way."""

    def note_running(self, request: EngineRequest) -> None:
        """A waiting request begins to run; `preemptions` tells whether it did before."""

    def note_end(self, request: EngineRequest) -> None:
        """A request is over; `running` tells what it was."""

    def note_output(self, request: EngineRequest, num_tokens: int) -> None:
        """A request got new tokens."""


class FirstComeFirstServed(Policy):
    """The oldest request is next, the youngest gives way: the oldest always gets on."""
