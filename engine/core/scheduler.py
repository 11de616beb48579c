"""Decides what each step computes: a token budget, no prefill and decode phases.

Pure: values in, values out, the time is an argument. Every request just catches up: it computes the
tokens that are known but not in its KV cache, as many as the budget allows (a chunk of the prompt,
or the one token of a decode and guesses of what follows). Blocks run out: a request gives way, and
computes all anew later, but for what the prefix cache still has.

A step serves decodes first, so that none ever waits for a prompt, then the prompts that are being
computed, then those that come in. While others decode, long prompts get only what `ChunkPace`
allows: the gap between two tokens of a decode is the time of a step, which grows with its tokens.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from engine.config import EngineConfig
from engine.core.admission import Admission
from engine.core.batch import ModelFacts, ScheduledRequest, StepResult
from engine.core.block_pool import BlockPool
from engine.core.drafter import Drafting
from engine.core.endings import DEADLINE_EXCEEDED, ending_of, failed, failed_in_step
from engine.core.kv_blocks import KvBlocks
from engine.core.length_estimate import LengthEstimate
from engine.core.limits import Limits
from engine.core.plan import Plan, is_prefill
from engine.core.policies.policy import Policy
from engine.core.policies.registry import make_policy
from engine.core.request import (
    Ending,
    EngineRequest,
    Produced,
    StepTimes,
    produced_end,
    produced_tokens,
)
from engine.core.serving import Serving
from engine.wire.messages import FinishReason, TokenLogprobs


@dataclass(slots=True, frozen=True)
class SchedulerCounts:
    """Levels and cumulative counts, for the stats."""

    num_blocks: int
    used_blocks: int
    cached_blocks: int
    evicted_blocks: int
    prefix_queried_tokens: int
    cached_tokens: int
    drafted_tokens: int
    accepted_tokens: int
    length_predictions: int
    length_error_tokens: int
    window_blocks: int
    free_window_blocks: int


class Scheduler:
    """Waiting and running requests, and the blocks that the running ones hold.

    Args:
        limits: Bounds of a step and of a request. One of `max_len` tokens fits when it is alone.
        kv: The KV blocks.
        policy: Who is next, who gives way.
        lengths: How much requests will grow.
        drafting: Guesses of what comes next.
    """

    def __init__(
        self,
        limits: Limits,
        kv: KvBlocks,
        policy: Policy,
        lengths: LengthEstimate,
        drafting: Drafting,
    ) -> None:
        assert limits.max_len <= kv.max_tokens, "a request that runs alone must fit"
        self.max_len = limits.max_len
        self._limits = limits
        self._kv = kv
        self._policy = policy
        self._lengths = lengths
        self._drafting = drafting
        self._admission = Admission(limits, kv, policy, lengths)
        self._serving = Serving(limits, kv, policy, self._admission, drafting)
        self._requests: dict[str, EngineRequest] = {}
        self._arrivals = 0
        self._next_deadline_ns: int | None = None
        self._is_in_step = False
        self._held_by_step: list[EngineRequest] = []

    @property
    def requests(self) -> Mapping[str, EngineRequest]:
        """Live requests by id, in the order of their arrival."""
        return self._requests

    @property
    def num_running(self) -> int:
        """Requests that hold KV blocks."""
        return len(self._admission.running)

    @property
    def num_waiting(self) -> int:
        """Requests that hold none."""
        return len(self._admission.waiting)

    @property
    def has_runnable(self) -> bool:
        """Whether a `schedule` now would compute or end something, deadlines apart."""
        return bool(self._admission.running) or self._admission.waiting.is_anyone_ready

    @property
    def pool(self) -> BlockPool:
        """KV blocks of the full-attention layers."""
        return self._kv.pool

    @property
    def window_pool(self) -> BlockPool | None:
        """KV blocks of the sliding-window layers."""
        return self._kv.window_pool

    @property
    def counts(self) -> SchedulerCounts:
        """Figures for the stats."""
        pool, window_pool, cache = self._kv.pool, self._kv.window_pool, self._kv.cache
        return SchedulerCounts(
            num_blocks=pool.num_blocks,
            used_blocks=pool.num_used,
            cached_blocks=pool.num_cached,
            evicted_blocks=pool.evicted,
            prefix_queried_tokens=cache.queried_tokens,
            cached_tokens=cache.cached_tokens,
            drafted_tokens=self._drafting.drafted,
            accepted_tokens=self._drafting.accepted,
            length_predictions=self._lengths.predictions,
            length_error_tokens=self._lengths.error_tokens,
            window_blocks=window_pool.num_blocks if window_pool else 0,
            free_window_blocks=window_pool.num_free if window_pool else 0,
        )

    # ------------------------------------------------------------ requests

    def refusal(self, request: EngineRequest) -> Ending | None:
        """Return why this request could never run, or None when it can."""
        if request.num_prompt_tokens + 1 > self.max_len:
            message = (
                f"the prompt has {request.num_prompt_tokens} tokens; with one new token "
                f"at most {self.max_len} fit in this engine"
            )
            return failed("prompt_too_long", message)
        if request.adapter is not None and self._limits.max_loras < 1:
            return failed("adapter_not_loaded", "this engine takes no adapters")
        return None

    def add(self, request: EngineRequest) -> None:
        """Let a request wait; `refusal` said that it can run. Its id must be new."""
        assert request.request_id not in self._requests, "request ids are unique"
        self._arrivals += 1
        request.arrival = self._arrivals
        self._requests[request.request_id] = request
        self._kv.cache.hash_blocks(request)  # here and not in a step: it takes time
        self._admission.waiting.add(request)
        if request.deadline_ns is not None:
            self._note_deadline(request.deadline_ns)

    def end(self, request: EngineRequest, ending: Ending, now_ns: int) -> Produced:
        """End a live request and free its blocks; return its last output.

        The blocks of one that is in the step being computed are free when that is over: until then
        the device may write to them.
        """
        self._remove(request)
        return produced_end(request, ending, now_ns)

    def _remove(self, request: EngineRequest) -> None:
        del self._requests[request.request_id]
        self._drafting.forget(request)
        self._policy.note_end(request)
        if request.running:
            self._admission.leave(request)
        else:
            self._admission.waiting.remove(request)
            self._admission.tell_obstacle(request)
        request.running, request.is_over = False, True
        if request.in_step:
            self._held_by_step.append(request)
        else:
            self._kv.release(request)
        if request.adapter is not None:
            request.adapter.release()

    def reset_prefix_cache(self) -> int:
        """Forget all cached prefixes; return how many blocks had some."""
        return self._kv.cache.forget_all()

    def borrow_blocks(self, num_tokens: int) -> AbstractContextManager[tuple[list[int], list[int]]]:
        """Lend `(block_table, window_table)` for tokens of the engine's own.

        No request may be live. The blocks come back uncached.
        """
        assert not self._requests, "blocks are lent while nothing is live"
        return self._kv.borrow(num_tokens)

    # ------------------------------------------------------------ before the step

    def schedule(self, now_ns: int) -> Plan:
        """Choose what the next step computes, and give it blocks."""
        assert not self._is_in_step, "the step before is not over"
        self._kv.pool.now_ns = now_ns
        plan = Plan(ended=[*self._end_failed(now_ns), *self._end_expired(now_ns)])

        def preempt(victim: EngineRequest) -> None:
            self._preempt(victim, now_ns)
            plan.preempted += 1

        self._admission.enter_urgent(preempt)
        self._serving.fill(plan, preempt)
        has_settled = self._admission.running or self._admission.waiting.has_settled
        assert plan.batch or not has_settled, "runnable requests and nothing to compute"
        self._is_in_step = bool(plan.batch)
        return plan

    def _end_failed(self, now_ns: int) -> list[Produced]:
        return [
            self.end(request, Ending(FinishReason.ERROR, error=fault), now_ns)
            for request, fault in self._admission.waiting.settle(now_ns)
        ]

    def _end_expired(self, now_ns: int) -> list[Produced]:
        if self._next_deadline_ns is None or self._next_deadline_ns > now_ns:
            return []
        expired: list[EngineRequest] = []
        self._next_deadline_ns = None
        for request in self._requests.values():
            deadline_ns = request.deadline_ns
            if deadline_ns is None:
                continue
            if deadline_ns <= now_ns:
                expired.append(request)
            else:
                self._note_deadline(deadline_ns)
        return [self.end(request, DEADLINE_EXCEEDED, now_ns) for request in expired]

    def _note_deadline(self, deadline_ns: int) -> None:
        earliest = self._next_deadline_ns
        if earliest is None or deadline_ns < earliest:
            self._next_deadline_ns = deadline_ns

    def _preempt(self, request: EngineRequest, now_ns: int) -> None:
        self._admission.leave(request)
        self._kv.release(request)
        self._admission.waiting.add(request)
        request.note_preemption(now_ns)

    # ------------------------------------------------------------ after the step

    def update(self, plan: Plan, result: StepResult, times: StepTimes) -> list[Produced]:
        """Write what a step computed into its requests; return what came out, ends included."""
        self._is_in_step = False
        took_ns = times.executed_ns - times.started_ns
        self._serving.pace.observe(plan.prefill_tokens, plan.decode_tokens, took_ns)
        produced: list[Produced] = []
        for request, share in zip(plan.requests, plan.batch, strict=True):
            request.in_step = False
            if request.is_over:  # it was ended while the step ran
                continue
            request.note_share(len(share.token_ids), times, prefill=is_prefill(share))
            output = self._outcome(request, share, result, times.executed_ns)
            if output is not None:
                produced.append(output)
        for request in self._held_by_step:
            self._kv.release(request)
        self._held_by_step.clear()
        return produced

    def _outcome(
        self, request: EngineRequest, share: ScheduledRequest, result: StepResult, now_ns: int
    ) -> Produced | None:
        fault = result.faults.get(request.request_id)
        if fault is not None:  # nothing that this step wrote gets into the prefix cache
            return self.end(request, failed_in_step(fault), now_ns)
        if share.prompt_logprobs is not None:
            request.prompt_logprobs.extend(result.prompt_logprobs.get(request.request_id, ()))
        if not share.samples:
            request.num_computed_tokens += len(share.token_ids)
            self._kv.commit(request)
            return None
        tokens = result.token_ids.get(request.request_id)
        if not tokens:
            return self.end(request, failed("internal_error", "no token was sampled"), now_ns)
        complaint = request.grammar.accept(tokens[0]) if request.grammar else None
        if complaint is not None:
            return self.end(request, failed("invalid_grammar", complaint), now_ns)
        return self._keep(request, share, tokens, result.logprobs.get(request.request_id), now_ns)

    def _keep(
        self,
        request: EngineRequest,
        share: ScheduledRequest,
        tokens: Sequence[int],
        logprobs: Sequence[TokenLogprobs] | None,
        now_ns: int,
    ) -> Produced:
        """Append a step's tokens up to the one that ends the request; drop those after it."""
        if share.num_drafts:
            self._drafting.note_result(request, share.num_drafts, len(tokens) - 1)
        kept, ending = 0, None
        for token_id in tokens:
            request.note_token(token_id, now_ns)
            kept += 1
            ending = ending_of(request, self.max_len)
            if ending is not None:
                break
        known = len(share.token_ids) - share.num_drafts
        request.num_computed_tokens += known + kept - 1  # right guesses are computed already
        self._kv.commit(request)
        self._policy.note_output(request, kept)
        if ending is not None:
            self._lengths.observe(request)
            self._remove(request)
        return produced_tokens(request, kept, logprobs and logprobs[:kept], ending, now_ns)


def make_scheduler(config: EngineConfig, facts: ModelFacts) -> Scheduler:
    """Make the scheduler of an engine.

    Raises:
        ConfigError: the policy is unknown or cannot work with this configuration.
    """
    window_pool = None
    if facts.num_window_blocks:
        window_pool = BlockPool(facts.num_window_blocks, config.block_size)
    kv = KvBlocks(
        BlockPool(facts.num_blocks, config.block_size),
        window_pool,
        facts.sliding_window or 0,
        prefix_caching=config.prefix_caching,
    )
    limits = Limits(
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_len=min(facts.max_model_len, kv.max_tokens),
        long_prefill_threshold=config.long_prefill_threshold,
        max_loras=config.max_loras,
    )
    return Scheduler(
        limits,
        kv,
        make_policy(config, facts),
        LengthEstimate(enabled=config.predict_lengths),
        Drafting(config.speculative_tokens),
    )
