"""Lets waiting requests in: when there is a place, KV blocks, an adapter's slot and room to grow.

Two ways in. Whoever has its turn enters after the running requests have got their share of a step.
Whoever the policy ranks above a running request enters before them, and if need be takes the
other's place.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple

from engine.core.chunk_pace import StepBudget
from engine.core.kv_blocks import KvBlocks
from engine.core.length_estimate import LengthEstimate
from engine.core.limits import Limits
from engine.core.policies.policy import Policy
from engine.core.request import EngineRequest
from engine.core.waiting import WaitingRequests

MAX_OVERTAKEN = 32
"""Requests that may pass one that waits for an adapter's slot; then all wait for it."""
MAX_SKIPPED = 64
"""Requests looked past in one step."""
MAX_URGENT_LANES = 8
"""Lanes whose heads are looked at for a request that may take another's place."""


class Obstacle(NamedTuple):
    """Why newcomers had to wait when a step was planned, and for which of them it holds."""

    reason: str
    """As in `Timeline.waited_for`."""
    last_arrival: int
    """Whoever came later has not waited for it."""
    at_ns: int


class Admission:
    """Decides who starts to run. Owns the running requests.

    Args:
        limits: `max_len` is what fits into the pools.
        kv: Gives the blocks.
        policy: Whose turn it is.
        lengths: How much requests will grow.
    """

    def __init__(
        self, limits: Limits, kv: KvBlocks, policy: Policy, lengths: LengthEstimate
    ) -> None:
        self.waiting = WaitingRequests(policy)
        self.running: dict[int, EngineRequest] = {}
        """By arrival, in the order of their admission."""
        self.growth_blocks = 0
        """Sum over the running requests."""
        self.obstacle: Obstacle | None = None
        """Of the last step that somebody had to wait for."""
        self._limits = limits
        self._kv = kv
        self._policy = policy
        self._lengths = lengths
        self._adapters: Counter[str] = Counter()

    # ------------------------------------------------------------ letting in

    def enter_urgent(self, preempt: Callable[[EngineRequest], None]) -> None:
        """Let those in that outrank running requests, at the cost of these if need be."""
        if len(self.waiting) == 0 or not self._policy.takes_places:
            return
        for head in self.waiting.heads()[:MAX_URGENT_LANES]:
            request: EngineRequest | None = head
            while request is not None and self._enter_before_others(request, preempt):
                request = self.waiting.head_of(head)

    def _enter_before_others(
        self, request: EngineRequest, preempt: Callable[[EngineRequest], None]
    ) -> bool:
        running = list(self.running.values())
        victim = self._policy.victim_for(request, running, ())
        if victim is None or not self._has_adapter_slot(request):
            return False
        if self._policy.has_place(request, running) and self._start(request, spare=False):
            return True
        victims = self._victims(request)
        for victim in victims:
            preempt(victim)
        return bool(victims) and self._start(request, spare=False)

    def _victims(self, request: EngineRequest) -> list[EngineRequest]:
        """Return the fewest that must give way, or nobody if that would not help."""
        chunk = self._limits.max_num_batched_tokens
        victims: list[EngineRequest] = []
        running = list(self.running.values())
        while True:
            victim = self._policy.victim_for(request, running, victims)
            if victim is None:
                return []
            running.remove(victim)
            victims.append(victim)
            fits = self._kv.fits_without(victims, request, running, chunk)
            if fits and self._policy.has_place(request, running):
                return victims

    def enter_in_turn(self, budget: StepBudget) -> Iterator[EngineRequest]:
        """Let requests in whose turn it is, one at a time.

        The first that does not fit stops all others: else small ones would pass it for ever. Only
        who waits for an adapter's slot is passed, and not for ever either, and a long prompt while
        others take what long ones may have of a step: it is the next of them.

        Args:
            budget: Of the step; whoever takes from it does so before the next is let in.
        """
        passed: set[int] = set()
        while budget.tokens > 0 and (request := self._next(passed, budget)) is not None:
            if not self._policy.has_place(request, self.running.values()):
                self.note_obstacle("seats")
                return
            if not self._start(request, spare=True):
                self.note_obstacle("kv_blocks")
                return
            self._note_overtaking(passed)
            yield request
        if budget.tokens <= 0:
            self.note_obstacle("budget")

    def note_obstacle(self, reason: str) -> None:
        """All that wait now, but for those that were passed for a reason of their own, wait for it.

        Told to each of them only when it starts or ends: there may be thousands.
        """
        if self.waiting.has_settled:
            self.obstacle = Obstacle(reason, self.waiting.last_arrival, self._kv.pool.now_ns)

    def tell_obstacle(self, request: EngineRequest) -> None:
        """Write into a request what it had to wait for, if it had to."""
        obstacle = self.obstacle
        if obstacle is None or request.arrival > obstacle.last_arrival:
            return
        if request.waited_for is None or obstacle.at_ns > request.looked_ns:
            request.waited_for = obstacle.reason

    def _next(self, passed: set[int], budget: StepBudget) -> EngineRequest | None:
        for request in self.waiting.in_order():
            if request.arrival in passed:
                continue
            has_slot = self._has_adapter_slot(request)
            if has_slot and self._gets_tokens(request, budget):
                return request
            request.waited_for = "budget" if has_slot else "adapter"
            request.looked_ns = self._kv.pool.now_ns
            is_patient = has_slot or request.overtaken < MAX_OVERTAKEN
            if not is_patient or len(passed) >= MAX_SKIPPED:
                return None
            passed.add(request.arrival)
        return None

    def _gets_tokens(self, request: EngineRequest, budget: StepBudget) -> bool:
        if budget.share(request.num_uncomputed_tokens) > 0:
            return True
        return budget.share(self._kv.num_uncached_tokens(request)) > 0

    def _note_overtaking(self, passed: set[int]) -> None:
        if passed:
            for request in self.waiting.in_order():
                request.overtaken += request.arrival in passed

    def _has_adapter_slot(self, request: EngineRequest) -> bool:
        adapter = request.adapter_hash
        in_use = self._adapters
        return adapter is None or adapter in in_use or len(in_use) < self._limits.max_loras

    def _start(self, request: EngineRequest, *, spare: bool) -> bool:
        """Give a waiting request its blocks and let it run; false when they are not there."""
        predicted = request.predicted_tokens
        if predicted is None:
            predicted = self._lengths.predict(request)
        growth = self._growth_of(request, predicted)
        spare_blocks = growth + self.growth_blocks if spare and self.running else 0
        others = list(self.running.values()) if self._kv.window_pool is not None else []
        if not self._kv.start(request, others, self._limits.max_num_batched_tokens, spare_blocks):
            return False
        self.waiting.remove(request)
        self._policy.note_running(request)
        self._tell_first_wait(request)
        request.note_start()
        request.running, request.predicted_tokens = True, predicted
        request.growth_blocks = growth
        self.growth_blocks += growth
        self.running[request.arrival] = request
        if request.adapter_hash is not None:
            self._adapters[request.adapter_hash] += 1
        return True

    def _tell_first_wait(self, request: EngineRequest) -> None:
        if request.scheduled_ns is None:
            self.tell_obstacle(request)

    def _growth_of(self, request: EngineRequest, predicted: int | None) -> int:
        if predicted is None:
            return 0
        blocks_for = self._kv.pool.blocks_for
        length = min(request.num_prompt_tokens + predicted, self._limits.max_len)
        return max(0, blocks_for(length) - blocks_for(len(request.token_ids)))

    # ------------------------------------------------------------ and out

    def leave(self, request: EngineRequest) -> None:
        """Take a request out of the running ones; its blocks are the caller's."""
        del self.running[request.arrival]
        self.growth_blocks -= request.growth_blocks
        request.growth_blocks = 0
        adapter = request.adapter_hash
        if adapter is not None:
            self._adapters[adapter] -= 1
            if self._adapters[adapter] == 0:
                del self._adapters[adapter]

    def note_growth(self, request: EngineRequest, num_blocks: int) -> None:
        """Take blocks that a running request got off what it was predicted to need."""
        expected = min(num_blocks, request.growth_blocks)
        request.growth_blocks -= expected
        self.growth_blocks -= expected
