"""What each step computes, and that it never changes what a request gets."""

import random

import pytest

from engine.core.endings import ABORTED, ending_of
from engine.core.request import EngineRequest
from engine.wire.messages import FinishReason
from tests.engine.core.kv_runner import EOS, FAULTY, next_token, oracle
from tests.engine.core.scheduler_bench import Bench, a_request


def test_a_long_prompt_is_computed_in_chunks_of_the_budget():
    bench = Bench(budget=16)
    bench.add(a_request("long", list(range(40)), max_tokens=2))

    sizes = []
    for _ in range(4):
        bench.step()
        sizes.append(bench.shares()["long"])

    assert sizes == [16, 16, 8, 1]
    assert bench.outputs["long"] == oracle(range(40), 2)


def test_decodes_and_a_new_prompt_share_a_step():
    bench = Bench(budget=16)
    bench.add(a_request("old", [5, 6, 7]))
    bench.step()
    bench.add(a_request("new", list(range(30))))

    bench.step()

    assert bench.shares() == {"old": 1, "new": 15}
    assert (bench.plan.decode_tokens, bench.plan.prefill_tokens) == (1, 15)


def test_no_more_requests_run_than_allowed():
    bench = Bench(seqs=2)
    bench.add(*(a_request(f"r{number}", [number]) for number in range(4)))

    bench.step()

    assert bench.scheduler.num_running == 2
    assert bench.scheduler.num_waiting == 2


def test_requests_join_in_the_order_of_their_arrival():
    bench = Bench(seqs=1)
    bench.add(*(a_request(f"r{number}", [number], max_tokens=1) for number in range(3)))

    order = [bench.step()[0].output.request_id for _ in range(3)]

    assert order == ["r0", "r1", "r2"]


def test_the_youngest_gives_way_when_blocks_run_out_and_its_tokens_stay_the_same():
    bench = Bench(num_blocks=4)  # 16 tokens
    bench.add(
        a_request("old", [1, 2, 3, 4, 5, 6], max_tokens=9),
        a_request("young", [7, 8, 9, 10, 11, 12], max_tokens=9),
    )

    bench.run()

    assert bench.outputs["old"] == oracle([1, 2, 3, 4, 5, 6], 9)
    assert bench.outputs["young"] == oracle([7, 8, 9, 10, 11, 12], 9)
    timelines = {name: item.output.timeline for name, item in bench.endings.items()}
    assert timelines["old"].preempted_ns == ()
    assert len(timelines["young"].preempted_ns) >= 1
    assert bench.scheduler.pool.num_used == 0


def test_a_preempted_request_goes_before_those_that_wait():
    bench = Bench(num_blocks=4)
    bench.add(
        a_request("old", [1, 2, 3, 4, 5, 6], max_tokens=9),
        a_request("young", [7, 8, 9, 10, 11, 12], max_tokens=9),
    )
    bench.step()
    bench.add(a_request("late", [13], max_tokens=1))  # the pool is full: it waits

    bench.run()

    assert bench.endings["young"].request.preemptions

    timelines = {name: item.output.timeline for name, item in bench.endings.items()}
    assert timelines["late"].scheduled_ns > timelines["old"].finished_ns
    assert timelines["young"].chunks[-1].start_ns <= timelines["late"].scheduled_ns


@pytest.mark.parametrize(
    ("num_blocks", "max_len", "limit"), [(64, 20, 20), (3, 200, 12)], ids=["context", "pool"]
)
def test_a_prompt_that_can_never_fit_is_refused(num_blocks: int, max_len: int, limit: int):
    bench = Bench(num_blocks=num_blocks, max_len=max_len)

    fits = a_request("fits", [1] * (limit - 1))
    refusal = bench.scheduler.refusal(a_request("too-long", [1] * limit))

    assert bench.scheduler.refusal(fits) is None
    assert refusal is not None
    assert refusal.reason is FinishReason.ERROR
    assert refusal.error.code == "prompt_too_long"
    assert str(limit) in refusal.error.message


@pytest.mark.parametrize(("num_blocks", "max_len", "limit"), [(64, 20, 20), (3, 200, 12)])
def test_a_request_that_fills_the_context_or_the_pool_ends_with_length(
    num_blocks: int, max_len: int, limit: int
):
    bench = Bench(num_blocks=num_blocks, max_len=max_len)
    bench.add(a_request("greedy", [1, 2, 3], max_tokens=500, ignore_eos=True))

    bench.run()

    assert bench.endings["greedy"].output.finish_reason is FinishReason.LENGTH
    assert len(bench.outputs["greedy"]) == limit - 3


def test_a_stop_token_ends_a_request_and_is_named():
    tokens = oracle([9], 4)
    bench = Bench()
    bench.add(a_request("r", [9], max_tokens=50, stop_token_ids=(tokens[2],)))

    bench.run()

    output = bench.endings["r"].output
    assert output.finish_reason is FinishReason.STOP
    assert output.stop_token_id == tokens[2]
    assert bench.outputs["r"] == tokens[:3]


def eos_prompt() -> list[int]:
    """A prompt whose first token is the end token."""
    return next([n, m] for n in range(400) for m in range(400) if next_token([n, m]) == EOS)


def test_the_models_end_token_ends_a_request_unless_it_is_ignored():
    bench = Bench()
    bench.add(
        a_request("stops", eos_prompt(), max_tokens=3),
        a_request("goes-on", eos_prompt(), max_tokens=3, ignore_eos=True),
    )

    bench.run()

    assert bench.outputs["stops"] == [EOS]
    assert bench.endings["stops"].output.stop_token_id == EOS
    assert len(bench.outputs["goes-on"]) == 3
    assert bench.endings["goes-on"].output.finish_reason is FinishReason.LENGTH


def test_end_tokens_are_banned_before_min_tokens():
    bench = Bench()
    bench.add(a_request("r", eos_prompt(), max_tokens=3, min_tokens=2, stop_token_ids=(77,)))

    bench.step()
    bench.step()
    bench.step()

    banned = [set(batch[0].banned_token_ids) for batch in bench.runner.batches]
    assert banned == [{EOS, 77}, {EOS, 77}, set()]
    assert EOS not in bench.outputs["r"][:2]


def test_an_end_token_before_min_tokens_ends_nothing_even_if_it_is_sampled():
    request = a_request("r", [1], min_tokens=2, max_tokens=9)

    request.note_token(EOS, 5)
    assert ending_of(request, max_len=100) is None
    request.note_token(7, 6)
    request.note_token(EOS, 7)
    assert ending_of(request, max_len=100).reason is FinishReason.STOP


def test_a_deadline_that_passed_ends_a_request_waiting_or_running():
    bench = Bench(seqs=1)
    bench.add(
        a_request("running", [1], deadline_ns=35, max_tokens=50),
        a_request("waiting", [2], deadline_ns=25),
    )
    bench.step()
    bench.step()
    assert set(bench.endings) == {"waiting"}
    bench.step()

    for name in ("running", "waiting"):
        output = bench.endings[name].output
        assert output.finish_reason is FinishReason.ERROR
        assert output.error.code == "deadline_exceeded"
    assert bench.scheduler.pool.num_used == 0


def test_a_fault_ends_its_request_alone():
    bench = Bench()
    bench.add(a_request("bad", [1, FAULTY]), a_request("good", [1, 2]))

    bench.run()

    assert bench.endings["bad"].output.finish_reason is FinishReason.ERROR
    assert bench.endings["bad"].output.error.code == "internal_error"
    assert bench.outputs["good"] == oracle([1, 2], 5)


def test_the_timeline_tells_chunks_steps_and_tokens():
    bench = Bench(budget=16)
    bench.add(a_request("r", list(range(20)), max_tokens=2))

    first = [bench.step(), bench.step()][1][0].output
    last = bench.step()[0].output

    assert [(c.tokens, c.step, c.start_ns, c.end_ns) for c in last.timeline.chunks] == [
        (16, 1, 20, 25),
        (4, 2, 30, 35),
    ]
    assert first.timeline is not None
    assert first.timeline.finished_ns is None
    times = last.timeline
    assert (times.received_ns, times.scheduled_ns, times.first_token_ns) == (1, 20, 35)
    assert (times.last_token_ns, times.finished_ns) == (45, 45)
    assert (times.first_step, times.last_step, times.max_batch) == (1, 3, 1)


# ------------------------------------------------------------ random operations


class Explorer:
    """Does random things to a scheduler with little memory and checks all invariants each time."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.budget = self.random.choice([1, 8, 32])
        self.bench = Bench(
            num_blocks=self.random.choice([6, 10, 14]),
            seqs=self.random.choice([2, 4, 8]),
            budget=self.budget,
            max_len=self.random.choice([16, 30, 100]),
        )
        self.requests: dict[str, EngineRequest] = {}
        self.prompts: dict[str, list[int]] = {}
        self.verified: dict[str, list[int]] = {}

    def act(self) -> None:
        action = self.random.choices([self.add, self.step, self.abort], [3, 10, 1])[0]
        action()
        self.check()

    def add(self) -> None:
        name = f"r{len(self.requests)}"
        length = self.random.randint(1, 24)
        prompt = [self.random.randrange(400) for _ in range(length)]
        deadline_ns = self.bench.now_ns + 500 if self.random.random() < 0.1 else None
        request = a_request(
            name,
            prompt,
            max_tokens=self.random.randint(1, 40),
            ignore_eos=True,
            deadline_ns=deadline_ns,
        )
        if self.bench.scheduler.refusal(request):
            assert length + 1 > self.bench.scheduler.max_len
            return
        self.requests[name], self.prompts[name] = request, prompt
        self.bench.add(request)

    def step(self) -> None:
        if not self.bench.scheduler.requests:
            return
        self.bench.step()
        planned = sum(len(share.token_ids) for share in self.bench.plan.batch)
        assert 0 < planned <= self.budget or self.bench.plan.ended

    def abort(self) -> None:
        live = list(self.bench.scheduler.requests.values())
        if live:
            request = self.random.choice(live)
            ended = self.bench.scheduler.end(request, ABORTED, self.bench.now_ns)
            self.bench.endings[request.request_id] = ended

    def check(self) -> None:
        pool, scheduler = self.bench.scheduler.pool, self.bench.scheduler
        live = scheduler.requests.values()
        held = [block for request in live for block in request.block_table]
        assert len(held) == len(set(held)) == pool.num_used
        assert pool.num_free + pool.num_used == pool.num_blocks
        assert scheduler.num_running + scheduler.num_waiting == len(live)
        for request in live:
            assert request.running or not request.block_table
            assert 0 <= request.num_computed_tokens < len(request.token_ids)
            assert len(request.block_table) >= pool.blocks_for(request.num_computed_tokens)
        for name, tokens in self.bench.outputs.items():
            known = self.verified.setdefault(name, list(self.prompts[name]))
            for token in tokens[len(known) - len(self.prompts[name]) :]:
                assert token == next_token(known), name
                known.append(token)

    def finish(self) -> None:
        for _ in range(20_000):
            if not self.bench.scheduler.requests:
                break
            self.step()
            self.check()
        assert not self.bench.scheduler.requests, "the scheduler does not come to an end"
        assert self.bench.scheduler.pool.num_used == 0
        assert set(self.bench.endings) == set(self.requests), "every request ends exactly once"


@pytest.mark.parametrize("seed", range(25))
def test_random_operations_keep_every_invariant(seed: int):
    explorer = Explorer(seed)
    for _ in range(200):
        explorer.act()
    explorer.finish()


def test_the_random_operations_do_preempt():
    preemptions = 0
    for seed in range(6):
        explorer = Explorer(seed)
        for _ in range(200):
            explorer.act()
        preemptions += sum(request.preemptions for request in explorer.requests.values())

    assert preemptions > 8
