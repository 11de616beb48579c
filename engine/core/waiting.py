"""The requests that hold no KV blocks: in the lanes of a policy, or not ready for them."""

from bisect import bisect_left, insort
from collections.abc import Hashable, Iterator
from operator import attrgetter

from engine.core.policies.policy import Policy
from engine.core.request import EngineRequest
from engine.wire.messages import RequestError

_by_arrival = attrgetter("arrival")


class WaitingRequests:
    """See the module.

    Args:
        policy: Says in which lane a request stands, and which lane is next.
    """

    def __init__(self, policy: Policy) -> None:
        self.last_arrival = 0
        """Of those that have stood in a lane, the youngest."""
        self._policy = policy
        self._lanes: dict[Hashable, list[EngineRequest]] = {}
        self._unready: dict[str, EngineRequest] = {}
        self._num_ready = 0

    def __len__(self) -> int:
        return self._num_ready + len(self._unready)

    @property
    def is_anyone_ready(self) -> bool:
        """Whether a request could start, or has failed before."""
        return self._num_ready > 0 or any(
            _fault(request) is not None or _is_ready(request) for request in self._unready.values()
        )

    @property
    def has_settled(self) -> bool:
        """Whether a request stands in a lane: unlike readiness, no other thread changes it."""
        return self._num_ready > 0

    def add(self, request: EngineRequest) -> None:
        """Let a request wait: among the ready ones if it is."""
        self._policy.note_waiting(request)
        if _fault(request) is None and _is_ready(request):
            if request.prerequisites and request.prepared_ns is None:
                request.prepared_ns = request.received_ns
            self._stand(request)
        else:
            request.waited_for = _lacks(request)
            self._unready[request.request_id] = request

    def _stand(self, request: EngineRequest) -> None:
        lane = self._lanes.setdefault(self._policy.lane(request), [])
        insort(lane, request, key=_by_arrival)
        self._num_ready += 1
        self.last_arrival = max(self.last_arrival, request.arrival)

    def remove(self, request: EngineRequest) -> None:
        """Let a request wait no longer; the policy is told by the caller why."""
        if self._unready.pop(request.request_id, None) is not None:
            return
        name = self._policy.lane(request)
        lane = self._lanes[name]
        index = bisect_left(lane, request.arrival, key=_by_arrival)
        assert lane[index] is request, "the request does not wait in its lane"
        del lane[index]
        if not lane:
            del self._lanes[name]
        self._num_ready -= 1

    def settle(self, now_ns: int) -> list[tuple[EngineRequest, RequestError]]:
        """Let those stand whose prerequisites are ready; return those that never will be, and why.

        These still wait: the caller ends them.
        """
        failed: list[tuple[EngineRequest, RequestError]] = []
        for request in list(self._unready.values()):
            fault = _fault(request)
            if fault is not None:
                failed.append((request, fault))
            elif _is_ready(request):
                del self._unready[request.request_id]
                request.prepared_ns = now_ns
                request.looked_ns = now_ns - 1  # what stands in its way from now on counts
                self._stand(request)
        return failed

    def heads(self) -> list[EngineRequest]:
        """Return the first of each lane, the best first."""
        return sorted((lane[0] for lane in self._lanes.values()), key=self._policy.rank)

    def head_of(self, request: EngineRequest) -> EngineRequest | None:
        """Return the first of the lane that a request is for, if someone stands there."""
        lane = self._lanes.get(self._policy.lane(request))
        return lane[0] if lane else None

    def in_order(self) -> Iterator[EngineRequest]:
        """Yield the ready requests, the best first; invalid after any change."""
        if len(self._lanes) == 1:
            (lane,) = self._lanes.values()
            yield from lane
            return
        for head in self.heads():
            yield from self._lanes[self._policy.lane(head)]


def _is_ready(request: EngineRequest) -> bool:
    return all(need.is_ready for need in request.prerequisites)


def _lacks(request: EngineRequest) -> str:
    adapter = request.adapter
    return "adapter" if adapter is not None and not adapter.is_ready else "grammar"


def _fault(request: EngineRequest) -> RequestError | None:
    return next((need.fault for need in request.prerequisites if need.fault is not None), None)
