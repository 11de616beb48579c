"""Decides what each step computes: a token budget, no prefill and decode phases.

Pure: values in, values out, the time is an argument. Every request just catches up: it computes the
tokens that are known but not in its KV cache, as many as the budget allows (a chunk of the prompt,
or the one token of a decode). Blocks run out: a request gives way, and computes all anew later.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from engine.core.batch import ScheduledRequest, StepResult
from engine.core.block_pool import BlockPool
from engine.core.endings import DEADLINE_EXCEEDED, banned_token_ids, ending_of, failed
from engine.core.policies import FirstComeFirstServed, Policy
from engine.core.request import (
    Ending,
    EngineRequest,
    Produced,
    StepTimes,
    produced_end,
    produced_token,
)


@dataclass(slots=True, frozen=True)
class Limits:
    """What bounds a step and a request."""

    max_num_seqs: int
    max_num_batched_tokens: int
    """Token budget of a step."""
    max_len: int
    """Tokens of a request, prompt included."""


@dataclass(slots=True)
class Plan:
    """What one step computes: `requests` and `batch` are parallel."""

    requests: list[EngineRequest] = field(default_factory=list)
    batch: list[ScheduledRequest] = field(default_factory=list)
    expired: list[Produced] = field(default_factory=list)
    preempted: int = 0
    prefill_tokens: int = 0
    decode_tokens: int = 0


class Scheduler:
    """Waiting and running requests, and the blocks that the running ones hold.

    Args:
        limits: Bounds of a step and of a request.
        pool: The KV blocks. A request that runs alone must fit: `max_len` is capped to it.
        policy: Who is next, who gives way.
    """

    def __init__(self, limits: Limits, pool: BlockPool, policy: Policy | None = None) -> None:
        self.pool = pool
        self.max_len = min(limits.max_len, pool.num_blocks * pool.block_size)
        self._limits = limits
        self._policy: Policy = policy or FirstComeFirstServed()
        self._requests: dict[str, EngineRequest] = {}
        self._waiting: deque[EngineRequest] = deque()
        self._running: list[EngineRequest] = []

    @property
    def requests(self) -> Mapping[str, EngineRequest]:
        """Live requests by id, in the order of their arrival."""
        return self._requests

    @property
    def num_running(self) -> int:
        """Requests that hold KV blocks."""
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        """Requests that hold none."""
        return len(self._waiting)

    def refusal(self, request: EngineRequest) -> Ending | None:
        """Return why this request could never run, or None when it can."""
        if request.num_prompt_tokens + 1 > self.max_len:
            message = (
                f"the prompt has {request.num_prompt_tokens} tokens; with one new token "
                f"at most {self.max_len} fit in this engine"
            )
            return failed("prompt_too_long", message)
        return None

    def add(self, request: EngineRequest) -> None:
        """Let a request wait; `refusal` said that it can run. Its id must be new."""
        assert request.request_id not in self._requests, "request ids are unique"
        self._requests[request.request_id] = request
        self._waiting.append(request)

    def end(self, request: EngineRequest, ending: Ending, now_ns: int) -> Produced:
        """End a live request and free its blocks; return its last output."""
        self._remove(request)
        return produced_end(request, ending, now_ns)

    # ------------------------------------------------------------ before the step

    def schedule(self, now_ns: int) -> Plan:
        """Choose what the next step computes, and give it blocks."""
        plan = Plan(expired=self._end_expired(now_ns))
        budget = self._schedule_running(plan, now_ns)
        if not plan.preempted:  # whoever gave way is next: nobody takes its blocks before it
            self._schedule_waiting(plan, budget)
        assert plan.batch or not self._requests, "live requests and nothing to compute"
        return plan

    def _end_expired(self, now_ns: int) -> list[Produced]:
        expired = [
            request
            for request in self._requests.values()
            if request.deadline_ns is not None and request.deadline_ns <= now_ns
        ]
        return [self.end(request, DEADLINE_EXCEEDED, now_ns) for request in expired]

    def _schedule_running(self, plan: Plan, now_ns: int) -> int:
        budget = self._limits.max_num_batched_tokens
        index = 0
        while index < len(self._running) and budget > 0:
            request = self._running[index]
            count = min(request.num_uncomputed_tokens, budget)
            if self._make_room(plan, index, request.num_computed_tokens + count, now_ns):
                _plan_share(plan, request, count)
                budget -= count
                index += 1
        return budget

    def _make_room(self, plan: Plan, index: int, num_tokens: int, now_ns: int) -> bool:
        """Give a running request blocks for `num_tokens`; false when it had to give way itself.

        Only requests that this step has not planned yet can give way.
        """
        request = self._running[index]
        missing = max(0, self.pool.blocks_for(num_tokens) - len(request.block_table))
        while (blocks := self.pool.allocate(missing)) is None:
            candidates = self._running[index:]
            victim = candidates[self._policy.victim(candidates)]
            self._preempt(victim, now_ns)
            plan.preempted += 1
            if victim is request:
                return False
        request.block_table.extend(blocks)
        return True

    def _preempt(self, request: EngineRequest, now_ns: int) -> None:
        self._running.remove(request)
        self._release(request)
        request.note_preemption(now_ns)
        self._waiting.appendleft(request)

    def _schedule_waiting(self, plan: Plan, budget: int) -> None:
        while self._waiting and budget > 0 and len(self._running) < self._limits.max_num_seqs:
            index = self._policy.next(self._waiting)
            request = self._waiting[index]
            # blocks for all that is known, not for this chunk alone: two half prompts that wait
            # for each other's blocks would only preempt one another
            blocks = self.pool.allocate(self.pool.blocks_for(len(request.token_ids)))
            if blocks is None:
                return
            del self._waiting[index]
            request.block_table.extend(blocks)
            request.running = True
            self._running.append(request)
            count = min(request.num_uncomputed_tokens, budget)
            _plan_share(plan, request, count)
            budget -= count

    # ------------------------------------------------------------ after the step

    def update(self, plan: Plan, result: StepResult, times: StepTimes) -> list[Produced]:
        """Write what a step computed into its requests; return what came out, ends included."""
        produced: list[Produced] = []
        for request, share in zip(plan.requests, plan.batch, strict=True):
            request.note_share(len(share.token_ids), times, prefill=_is_prefill(share))
            request.num_computed_tokens += len(share.token_ids)
            output = self._outcome(request, share, result, times.executed_ns)
            if output is not None:
                produced.append(output)
        return produced

    def _outcome(
        self, request: EngineRequest, share: ScheduledRequest, result: StepResult, now_ns: int
    ) -> Produced | None:
        fault = result.faults.get(request.request_id)
        if fault is not None:
            return self.end(request, failed("internal_error", fault), now_ns)
        if not share.samples:
            return None
        token_id = result.token_ids.get(request.request_id)
        if token_id is None:
            return self.end(request, failed("internal_error", "no token was sampled"), now_ns)
        request.note_token(token_id, now_ns)
        ending = ending_of(request, self.max_len)
        if ending is not None:
            self._remove(request)
        return produced_token(request, result.logprobs.get(request.request_id), ending, now_ns)

    # ------------------------------------------------------------ blocks

    def _remove(self, request: EngineRequest) -> None:
        del self._requests[request.request_id]
        if request.running:
            self._running.remove(request)
        else:
            self._waiting.remove(request)
        request.running = False
        self._release(request)

    def _release(self, request: EngineRequest) -> None:
        self.pool.free(request.block_table)
        request.block_table.clear()


def _plan_share(plan: Plan, request: EngineRequest, count: int) -> None:
    start = request.num_computed_tokens
    share = ScheduledRequest(
        request_id=request.request_id,
        token_ids=request.token_ids[start : start + count],
        start_position=start,
        block_table=request.block_table,
        samples=start + count == len(request.token_ids),
        sampling=request.sampling,
        num_output_tokens=request.num_output_tokens,
        banned_token_ids=banned_token_ids(request),
    )
    plan.requests.append(request)
    plan.batch.append(share)
    if _is_prefill(share):
        plan.prefill_tokens += count
    else:
        plan.decode_tokens += count


def _is_prefill(share: ScheduledRequest) -> bool:
    """Whether this is a prompt's (or a recomputed request's) chunk rather than a decode."""
    return len(share.token_ids) > 1 or not share.samples or share.num_output_tokens == 0
