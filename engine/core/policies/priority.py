"""Priorities: the more important request is next and takes the place of a less important one."""

from collections.abc import Collection, Hashable
from operator import attrgetter

from engine.core.batch import ConfigError
from engine.core.policies.policy import Policy, Rank
from engine.core.request import EngineRequest

_rank = attrgetter("priority", "arrival")


class Priority(Policy):
    """Lower numbers first, then first come first served.

    Requests of lower priority starve while more important ones take all there is: that is what the
    numbers ask for. Equal ones never take each other's place.

    Args:
        max_num_seqs: Requests that can run at once.
        max_num_tokens: Tokens that the KV cache holds.
        reserved_seqs: Places that only negative priorities may take.

    Raises:
        ConfigError: no place is left for other priorities.
    """

    takes_places = True

    def __init__(self, max_num_seqs: int, max_num_tokens: int, reserved_seqs: int = 0) -> None:
        super().__init__(max_num_seqs, max_num_tokens)
        if not 0 <= reserved_seqs < max_num_seqs:
            raise ConfigError(
                f"reserved_seqs must be at least 0 and less than max_num_seqs, "
                f"which is {max_num_seqs}; it is {reserved_seqs}"
            )
        self._open_seqs = max_num_seqs - reserved_seqs

    def lane(self, request: EngineRequest) -> Hashable:
        """Return its priority."""
        return request.priority

    def rank(self, request: EngineRequest) -> Rank:
        """Return its priority, then its arrival."""
        return _rank(request)

    def has_place(self, request: EngineRequest, running: Collection[EngineRequest]) -> bool:
        """Whether a place is free that is not reserved for others."""
        if len(running) >= self.max_num_seqs:
            return False
        if request.priority < 0 or len(running) < self._open_seqs:
            return True
        return sum(other.priority >= 0 for other in running) < self._open_seqs

    def victim_for(
        self,
        request: EngineRequest,
        running: Collection[EngineRequest],
        gone: Collection[EngineRequest],
    ) -> EngineRequest | None:
        """Return the youngest of the least important, if it is less important than `request`."""
        worst = max(running, key=_rank, default=None)
        if worst is None or worst.priority <= request.priority:
            return None
        return worst
