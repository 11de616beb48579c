"""Deals the token budget of a step out: decodes, prompts that are being computed, newcomers."""

from collections.abc import Callable
from dataclasses import dataclass

from engine.core.admission import Admission
from engine.core.chunk_pace import ChunkPace, StepBudget
from engine.core.drafter import Drafting
from engine.core.kv_blocks import KvBlocks
from engine.core.limits import Limits
from engine.core.plan import Plan
from engine.core.policies.policy import Policy
from engine.core.request import EngineRequest

SMALLEST_CHUNK = 4
"""Tokens of a long prompt in a step, however slow they are: attention to a long context is."""

Preempt = Callable[[EngineRequest], None]


@dataclass(slots=True)
class _Step:
    """What is being filled: the running requests, decodes first, and what is left for them."""

    plan: Plan
    order: list[EngineRequest]
    num_decodes: int
    budget: StepBudget
    preempt: Preempt


class Serving:
    """Fills plans.

    Args:
        limits: The token budget.
        kv: Room for the tokens.
        policy: Who is computed first, who gives way.
        admission: The running requests, and those that come in.
        drafting: Guesses of what comes next.
    """

    def __init__(
        self,
        limits: Limits,
        kv: KvBlocks,
        policy: Policy,
        admission: Admission,
        drafting: Drafting,
    ) -> None:
        self.pace = ChunkPace(
            limits.long_prefill_threshold, limits.max_num_batched_tokens, SMALLEST_CHUNK
        )
        self._limits = limits
        self._kv = kv
        self._policy = policy
        self._admission = admission
        self._drafting = drafting

    def fill(self, plan: Plan, preempt: Preempt) -> None:
        """Plan a step for the running requests and for those that come in now.

        Args:
            plan: Empty.
            preempt: Takes a request out of the running ones and its blocks away.
        """
        order, num_decodes = self._order()
        step = _Step(plan, order, num_decodes, self._budget(num_decodes), preempt)
        self._serve_decodes(step)
        if plan.batch:
            step.budget.tokens = min(step.budget.tokens, self.pace.limit_of_all())
        self._serve_prefills(step)
        if plan.preempted:  # newcomers would take the blocks of who gave way
            self._admission.note_obstacle("kv_blocks")
        else:
            self._serve_newcomers(step)

    def _budget(self, num_decodes: int) -> StepBudget:
        tokens = self._limits.max_num_batched_tokens
        long_tokens = self.pace.limit() if num_decodes else tokens
        return StepBudget(tokens, long_tokens, self.pace.long_above)

    def _order(self) -> tuple[list[EngineRequest], int]:
        """Return the running requests, those that decode first, and how many these are."""
        decodes: list[EngineRequest] = []
        prefills: list[EngineRequest] = []
        for request in self._admission.running.values():
            is_decode = len(request.token_ids) - request.num_computed_tokens == 1
            (decodes if is_decode else prefills).append(request)
        num_decodes = len(decodes)
        if num_decodes > self._limits.max_num_batched_tokens or self._kv.is_tight(num_decodes):
            decodes.sort(key=self._policy.rank)  # whoever gives way is behind those that stay
        prefills.sort(key=self._policy.rank)
        return decodes + prefills, num_decodes

    def _serve_decodes(self, step: _Step) -> None:
        """Plan one token each, and guesses from what the others and a long prompt leave over."""
        plan, budget, num_decodes = step.plan, step.budget, step.num_decodes
        has_prompts = len(step.order) > num_decodes or len(self._admission.waiting) > 0
        kept = num_decodes + (budget.long_tokens if has_prompts else 0)
        drafting, has_slot = self._drafting, self._kv.has_slot
        for index in range(num_decodes):
            request = step.order[index]
            if budget.tokens <= 0:
                return
            if not request.running:  # it gave way to one before it
                continue
            drafts: list[int] = []
            if drafting.max_drafts:
                spare = budget.tokens - kept + index
                drafts = drafting.drafts(request, spare, self._limits.max_len)
            if not drafts and has_slot(request):  # nearly always
                plan.add(request, 1)
                budget.tokens -= 1
            else:
                budget.tokens -= self._serve(step, index, 1, drafts)

    def _serve_prefills(self, step: _Step) -> None:
        if not step.plan.batch:  # no decode is left: they gave way to a prompt
            step.budget.long_tokens = step.budget.tokens
        for index in range(step.num_decodes, len(step.order)):
            request = step.order[index]
            uncomputed = request.num_uncomputed_tokens
            count = step.budget.share(uncomputed)
            if request.running and count > 0:
                step.budget.take(uncomputed, self._serve(step, index, count, []))

    def _serve_newcomers(self, step: _Step) -> None:
        budget = step.budget
        for request in self._admission.enter_in_turn(budget):
            uncomputed = request.num_uncomputed_tokens
            room = self._kv.fitting(request, budget.share(uncomputed))
            assert room > 0, "who is let in can compute"
            if request.preemptions == 0:
                step.plan.cached_tokens += request.cached_tokens
            self._plan_share(step.plan, request, room, [])
            budget.take(uncomputed, room)

    def _serve(self, step: _Step, index: int, count: int, drafts: list[int]) -> int:
        """Plan as many tokens of a running request as there is room for; return how many."""
        room = self._make_room(step, index, count + len(drafts))
        if room > 0:
            guesses = drafts[: max(0, room - count)]
            self._plan_share(step.plan, step.order[index], min(count, room), guesses)
        return room

    def _make_room(self, step: _Step, index: int, wanted: int) -> int:
        """Return for how many tokens of a request there is room; 0: it had to give way itself.

        Only requests that this step has not planned yet can give way.
        """
        request = step.order[index]
        while (room := self._kv.fitting(request, wanted)) < 1:
            candidates = [other for other in step.order[index:] if other.running]
            victim = max(candidates, key=self._policy.rank)
            step.preempt(victim)
            if victim is request:
                return 0
        return room

    def _plan_share(
        self, plan: Plan, request: EngineRequest, count: int, drafts: list[int]
    ) -> None:
        grown = self._kv.grow(request, count + len(drafts))
        if grown:
            self._admission.note_growth(request, grown)
        plan.add(request, count, drafts)
