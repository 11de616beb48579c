"""Random operations on a scheduler with hardly any memory: every text is the text it gets alone.

Saturated pools of 8 to 16 blocks, all policies, sliding windows, guesses, adapters, prerequisites,
faults, aborts between steps and inside them. All counts are checked after every operation.
"""

from collections import Counter
from typing import ClassVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from engine.core.length_estimate import MIN_SAMPLES
from engine.core.request import EngineRequest, StepTimes
from engine.wire.messages import FinishReason, RequestError
from tests.engine.core.kv_runner import EOS
from tests.engine.core.recount import check_scheduler
from tests.engine.core.scheduler_bench import Bench, a_request
from tests.engine.core.seeing_runner import (
    NUM_TOKENS,
    SeeingRunner,
    logprobs_of,
    text_alone,
)

FAULT = RequestError(code="invalid_grammar", message="as the test wants it")
ENDS_BY_ITSELF = (FinishReason.STOP, FinishReason.LENGTH)


class FakeLease:
    """An adapter that becomes ready, or fails, when the test says so."""

    def __init__(self, content_hash: str, *, is_ready: bool) -> None:
        self.content_hash = content_hash
        self.is_ready = is_ready
        self.fault: RequestError | None = None
        self.released = 0

    def release(self) -> None:
        self.released += 1


class SchedulerMachine(RuleBasedStateMachine):
    seen: ClassVar[Counter[str]] = Counter()
    """What has happened, over all runs."""

    @initialize(
        policy=st.sampled_from(["fcfs", "priority", "fair"]),
        num_blocks=st.integers(8, 16),
        budget=st.sampled_from([2, 5, 9, 40]),
        seqs=st.integers(2, 4),
        window=st.sampled_from([None, 1, 3, 5]),
        num_window_blocks=st.integers(4, 10),
        options=st.fixed_dictionaries(
            {
                "speculative_tokens": st.sampled_from([0, 3]),
                "long_prefill_threshold": st.sampled_from([0, 3, 100]),
                "max_loras": st.integers(1, 2),
                "prefix_caching": st.sampled_from([True, True, True, False]),
                "predict_lengths": st.booleans(),
            }
        ),
    )
    def start(self, policy, num_blocks, budget, seqs, window, num_window_blocks, options):
        runner = SeeingRunner(window)
        self.bench = Bench(
            num_blocks=num_blocks,
            seqs=seqs,
            budget=budget,
            max_len=24,
            window=window,
            num_window_blocks=num_window_blocks if window else 0,
            runner=runner,
            block_size=runner.block_size,
            policy=policy,
            reserved_seqs=1 if policy == "priority" else 0,
            **options,
        )
        self.runner = runner
        self.requests: dict[str, EngineRequest] = {}
        for tenant in (None, "loud", "quiet"):  # what was before: answers of six tokens
            for _ in range(MIN_SAMPLES):
                known = a_request("before", [1] * 7, tenant=tenant)
                known.num_prompt_tokens = 1
                self.scheduler._lengths.observe(known)

    @property
    def scheduler(self):
        return self.bench.scheduler

    # ------------------------------------------------------------ rules

    @rule(
        beginning=st.sampled_from([[], [1, 2, 3, 4], [1, 2, 3, 4, 5, 1, 2], [4, 4, 4, 4]]),
        rest=st.lists(st.integers(0, NUM_TOKENS - 1), min_size=1, max_size=9),
        fields=st.fixed_dictionaries(
            {
                "max_tokens": st.integers(1, 12),
                "priority": st.sampled_from([-1, 0, 0, 5]),
                "tenant": st.sampled_from([None, "loud", "loud", "quiet"]),
                "cache_salt": st.sampled_from([None, None, "salt"]),
                "ignore_eos": st.booleans(),
                "prompt_logprobs": st.sampled_from([None, None, 1]),
                "logprobs": st.sampled_from([None, 1]),
            }
        ),
        adapter=st.sampled_from([None, None, "a", "b", "c"]),
        is_ready=st.sampled_from([True, True, False]),
        patience=st.sampled_from([None, None, None, 40]),
        copies=st.integers(1, 4),
    )
    def add(self, beginning, rest, fields, adapter, is_ready, patience, copies):
        """Send requests that differ in their last token."""
        for copy in range(copies):
            if len(self.scheduler.requests) < 12:
                self.add_one([*beginning, *rest[:-1], copy], fields, adapter, is_ready, patience)

    def add_one(self, prompt, fields, adapter, is_ready, patience):
        name = f"r{len(self.requests)}"
        lease = FakeLease(adapter, is_ready=is_ready) if adapter else None
        deadline_ns = None if patience is None else self.bench.now_ns + patience
        request = a_request(
            name,
            prompt,
            adapter=lease,
            deadline_ns=deadline_ns,
            min_tokens=min(2, fields["max_tokens"]),
            **fields,
        )
        if self.scheduler.refusal(request) is None:
            self.requests[name] = request
            self.scheduler.add(request)
        else:
            assert len(prompt) + 1 > self.scheduler.max_len

    @precondition(lambda self: self.scheduler.has_runnable)
    @rule()
    def step(self):
        """Compute one step."""
        for produced in self.bench.step():
            output = produced.output
            if output.prompt_logprobs is not None:
                prompt = produced.request.token_ids[: produced.request.num_prompt_tokens]
                assert output.prompt_logprobs == logprobs_of(prompt[1:])
            if output.logprobs is not None:
                assert output.logprobs == logprobs_of(output.new_token_ids)

    @precondition(lambda self: self.scheduler.has_runnable)
    @rule()
    def several_steps(self):
        """Get on with what there is."""
        for _ in range(8):
            if self.scheduler.has_runnable:
                self.step()
                check_scheduler(self.scheduler)

    @precondition(lambda self: self.scheduler.requests)
    @rule(number=st.integers(0, 100))
    def abort(self, number):
        """End a request between two steps."""
        live = list(self.scheduler.requests.values())
        if number % 4 == 0:
            self.bench.abort(live[number % len(live)])

    @precondition(lambda self: self.scheduler.has_runnable)
    @rule(number=st.integers(0, 100))
    def abort_inside_a_step(self, number):
        """End a request while the device computes it."""
        bench = self.bench
        plan = self.scheduler.schedule(bench.now_ns)
        for item in plan.ended:
            bench.note(item)
        result = bench.execute(plan.batch)
        if plan.requests and number % 2:
            victim = plan.requests[number % len(plan.requests)]
            bench.abort(victim)
            self.seen["inside"] += 1
            check_scheduler(self.scheduler)
            assert victim.block_table, "the device may still write to them"
            assert all(self.scheduler.pool.num_holders(block) for block in victim.block_table)
        for item in self.scheduler.update(plan, result, StepTimes(1, 1, 2, len(plan.batch))):
            bench.note(item)

    @precondition(lambda self: self.scheduler.num_running)
    @rule(number=st.integers(0, 100))
    def fault(self, number):
        """Let a request fail in its next step."""
        running = [name for name, item in self.requests.items() if item.running]
        self.runner.faulty.add(running[number % len(running)])
        self.seen["faults"] += 1
        self.step()

    @precondition(lambda self: any(self.unready()))
    @rule(is_good=st.sampled_from([True, True, False]))
    def settle(self, is_good):
        """Let an adapter become ready, or not."""
        lease = self.unready()[0].adapter
        lease.is_ready = is_good
        lease.fault = None if is_good else FAULT

    @rule(number=st.integers(0, 3))
    def reset_prefix_cache(self, number):
        """Forget all prefixes, now and then."""
        if number:
            return
        self.scheduler.reset_prefix_cache()
        assert self.scheduler.counts.cached_blocks == 0

    def unready(self) -> list[EngineRequest]:
        live = self.scheduler.requests.values()
        return [
            item
            for item in live
            if item.adapter and not (item.adapter.is_ready or item.adapter.fault)
        ]

    # ------------------------------------------------------------ what must hold

    @invariant()
    def counts_are_right(self):
        if hasattr(self, "bench"):
            check_scheduler(self.scheduler)

    @invariant()
    def texts_are_what_they_are_alone(self):
        if not hasattr(self, "bench"):
            return
        for name, tokens in self.bench.outputs.items():
            request = self.requests[name]
            alone = text_alone(request, self.scheduler.max_len)
            assert tokens == alone[: len(tokens)], name
            ended = self.bench.endings.get(name)
            if ended is not None and ended.output.finish_reason in ENDS_BY_ITSELF:
                assert tokens == alone
                last = alone[-1] == EOS and not request.sampling.ignore_eos
                assert ended.output.stop_token_id == (EOS if last and len(alone) > 2 else None)

    def teardown(self):
        if not hasattr(self, "bench"):
            return
        for request in self.unready():
            request.adapter.is_ready = True
        for _ in range(600):
            if not self.scheduler.requests:
                break
            self.step()
        assert not self.scheduler.requests, "somebody starves"
        assert set(self.bench.endings) == set(self.requests)
        check_scheduler(self.scheduler)
        assert self.scheduler.pool.num_used == 0
        if self.scheduler.window_pool is not None:
            assert self.scheduler.window_pool.num_used == 0
        leases = [item.adapter for item in self.requests.values() if item.adapter]
        assert all(lease.released == 1 for lease in leases)
        self.check_counts()

    def check_counts(self) -> None:
        counts = self.scheduler.counts
        ended = self.bench.endings.values()
        self.seen.update(item.output.finish_reason for item in ended)
        self.seen.update(
            preempted=sum(item.request.preemptions for item in ended),
            cached=counts.cached_tokens,
            evicted=counts.evicted_blocks,
            drafted=counts.drafted_tokens,
            accepted=counts.accepted_tokens,
            predicted=counts.length_predictions,
        )
        timelines = [item.output.timeline for item in ended]
        assert counts.drafted_tokens == sum(timeline.drafted_tokens for timeline in timelines)
        assert counts.accepted_tokens == sum(timeline.accepted_tokens for timeline in timelines)
        assert counts.cached_tokens == sum(timeline.cached_tokens for timeline in timelines)


def test_random_operations_keep_every_invariant_and_meet_every_case():
    SchedulerMachine.seen.clear()

    run_state_machine_as_test(
        SchedulerMachine,
        settings=settings(
            max_examples=160,
            stateful_step_count=50,
            derandomize=True,
            database=None,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )

    seen = SchedulerMachine.seen
    wanted = ("preempted", "cached", "evicted", "drafted", "accepted", "predicted", "inside")
    assert all(seen[what] > 50 for what in (*wanted, "faults", *ENDS_BY_ITSELF)), seen
