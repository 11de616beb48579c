"""Guesses, grammars, adapters, logprobs of prompts, predictions and long prompts beside decodes."""

import pytest

from engine.core.batch import ScheduledRequest, StepResult
from engine.core.drafter import MAX_INDEXED, PromptLookup
from engine.core.length_estimate import MAX_TENANTS, MIN_SAMPLES, LengthEstimate
from engine.core.request import EngineRequest
from engine.wire.messages import FinishReason, RequestError
from tests.engine.core.kv_runner import EOS, oracle
from tests.engine.core.scheduler_bench import Bench, a_request
from tests.engine.core.seeing_runner import SeeingRunner, logprobs_of, text_alone
from tests.engine.core.test_scheduler_machine import FakeLease

# ------------------------------------------------------------ long prompts beside decodes


def test_a_prompt_gets_on_when_the_last_decode_gives_way_in_a_step_without_chunks():
    for num_blocks in range(80, 90):  # at 84 they run out in just that step
        bench = Bench(
            num_blocks=num_blocks,
            max_len=320,
            policy="priority",
            long_prefill_threshold=0,
            prefix_caching=False,
        )
        tokens_of = bench.execute

        def execute(batch, bench=bench, tokens_of=tokens_of) -> StepResult:
            bench.took_ns = 1000 * sum(len(share.token_ids) for share in batch)
            return tokens_of(batch)

        bench.execute = execute
        bench.add(a_request("decode", [2, 3, 4], max_tokens=300, ignore_eos=True, priority=3))
        bench.step()
        bench.step()
        bench.add(a_request("urgent", [1] * 300, max_tokens=2, ignore_eos=True, priority=-1))

        bench.run()

        assert set(bench.endings) == {"decode", "urgent"}


def decodes_and_a_long_prompt(step_ns_of, **options: object) -> tuple[Bench, list[int], list[int]]:
    """Eight decodes, then a prompt of 4,000 tokens; return its chunks and the steps' lengths."""
    bench = Bench(num_blocks=2000, seqs=16, budget=512, max_len=5000, block_size=16, **options)

    def execute(batch: list[ScheduledRequest]) -> StepResult:
        bench.took_ns = step_ns_of(sum(len(share.token_ids) for share in batch))
        return StepResult(token_ids={item.request_id: (7,) for item in batch if item.samples})

    bench.execute = execute
    for number in range(8):
        bench.add(a_request(f"decode{number}", [number] * 5, max_tokens=500))
    for _ in range(20):
        bench.step()
    bench.add(a_request("long", [9, *range(3999)], max_tokens=2))
    chunks, steps_ns = [], []
    while "long" not in bench.outputs:
        bench.step()
        shares = bench.shares()
        assert all(shares[f"decode{number}"] == 1 for number in range(8)), "no decode ever waits"
        chunks.append(shares.get("long", 0))
        steps_ns.append(bench.took_ns)
    return bench, chunks, steps_ns


def test_a_long_prompt_gets_the_configured_share_of_a_step_while_others_decode():
    _, chunks, _ = decodes_and_a_long_prompt(lambda tokens: 10, long_prefill_threshold=128)

    assert chunks == [128] * 31 + [32]


def test_unconfigured_it_gets_what_keeps_the_gaps_of_the_decodes_below_twice_the_usual():
    bench, chunks, steps_ns = decodes_and_a_long_prompt(
        lambda tokens: 20_000_000 + 400_000 * tokens, long_prefill_threshold=0
    )

    usual_ns = 20_000_000 + 8 * 400_000
    assert sum(chunks) == 4000
    steady = sorted(steps_ns)[int(0.95 * len(steps_ns))]
    assert steady <= 2 * usual_ns
    assert chunks[len(chunks) // 2] >= bench.scheduler.pool.block_size
    assert len(chunks) < 150, "and the prompt gets on"


def test_a_long_prompt_gets_on_beside_short_ones_that_never_end():
    bench = Bench(
        num_blocks=2000, seqs=16, budget=512, max_len=5000, block_size=16, long_prefill_threshold=0
    )

    def execute(batch: list[ScheduledRequest]) -> StepResult:
        bench.took_ns = 20_000_000 + 400_000 * sum(len(share.token_ids) for share in batch)
        return StepResult(token_ids={item.request_id: (7,) for item in batch if item.samples})

    bench.execute = execute
    bench.add(a_request("decode", [1] * 5, max_tokens=500, ignore_eos=True))
    for _ in range(20):
        bench.step()
    bench.add(a_request("long", [9, *range(3999)], max_tokens=2))
    for number in range(200):
        bench.add(a_request(f"short{number}", [number, *range(19)], max_tokens=2))
        bench.step()

    assert "long" in bench.outputs


def test_prompts_that_are_not_there_take_nothing_from_guesses():
    bench = Bench(
        num_blocks=2000,
        seqs=64,
        budget=512,
        max_len=500,
        block_size=16,
        long_prefill_threshold=0,
        speculative_tokens=4,
    )

    def execute(batch: list[ScheduledRequest]) -> StepResult:
        prompts = sum(len(share.token_ids) for share in batch if not share.num_drafts)
        bench.took_ns = 4_000_000 + 400_000 * prompts
        return StepResult(token_ids={item.request_id: what_follows(item) for item in batch})

    def what_follows(item: ScheduledRequest) -> tuple[int, ...]:
        end = item.start_position + len(item.token_ids)
        return tuple(position % 8 for position in range(end - item.num_drafts, end + 1))

    bench.execute = execute
    for number in range(50):
        prompt = [*range(8)] * 4
        bench.add(a_request(f"r{number}", prompt, max_tokens=400, ignore_eos=True))
    for _ in range(20):
        bench.step()

    assert sorted(bench.shares().values()) == [5] * 50


def waiting_behind_a_long_prompt(**options: object) -> Bench:
    """A decode and a long prompt whose chunks take all that long prompts may have."""
    bench = Bench(num_blocks=200, budget=32, max_len=400, long_prefill_threshold=8, **options)
    known = a_request("known", [5] * 200, max_tokens=1)
    bench.add(known)
    bench.run()
    bench.add(a_request("decode", [1], max_tokens=200, ignore_eos=True))
    bench.step()
    bench.add(a_request("long", [2] * 200, max_tokens=1))
    bench.step()
    return bench


def test_a_short_prompt_passes_long_ones_that_wait_for_another_long_one():
    bench = waiting_behind_a_long_prompt()
    bench.add(
        *(a_request(f"long{number}", [10 + number] * 200, max_tokens=1) for number in range(3)),
        a_request("short", [9] * 5, max_tokens=1),
    )

    bench.step()

    assert bench.shares() == {"decode": 1, "long": 8, "short": 5}
    bench.run()
    assert [name for name in bench.endings if name.startswith("long")] == [
        "long",
        "long0",
        "long1",
        "long2",
    ]


def test_a_long_prompt_that_is_mostly_cached_waits_for_no_other_long_one():
    bench = waiting_behind_a_long_prompt()
    bench.add(
        a_request("long-too", [3] * 200, max_tokens=1),
        a_request("second-turn", [*[5] * 200, 6], max_tokens=1),
    )

    bench.step()

    assert bench.shares() == {"decode": 1, "long": 8, "second-turn": 1}


def test_alone_a_long_prompt_gets_the_whole_budget():
    bench = Bench(budget=16, long_prefill_threshold=4)
    bench.add(a_request("long", list(range(40)), max_tokens=1))

    sizes = []
    while bench.scheduler.requests:
        bench.step()
        sizes.append(bench.shares()["long"])

    assert sizes == [16, 16, 8]


def test_two_long_prompts_share_what_long_prompts_may_take():
    bench = Bench(budget=32, long_prefill_threshold=8)
    bench.add(a_request("decode", [1], max_tokens=50, ignore_eos=True))
    bench.step()
    bench.add(a_request("long0", [2] * 60), a_request("long1", [3] * 60), a_request("short", [4]))

    bench.step()
    first = bench.shares()
    bench.step()

    assert first == {"decode": 1, "long0": 8, "short": 1}, "long1 waits and holds no blocks"
    assert bench.scheduler.num_waiting == 1
    bench.run()
    assert bench.outputs["long1"] == oracle([3] * 60, 5)


# ------------------------------------------------------------ guesses


def test_guesses_change_no_text_and_save_steps():
    texts, steps = [], []
    for tokens in (0, 4):
        bench = Bench(runner=SeeingRunner(), block_size=2, budget=64, speculative_tokens=tokens)
        bench.add(a_request("r", [1, 2, 3, 4], max_tokens=60, ignore_eos=True))
        bench.run()
        texts.append(bench.outputs["r"])
        steps.append(bench.steps)

    assert texts[0] == texts[1] == text_alone(bench.endings["r"].request, 200)
    assert steps[1] < 0.8 * steps[0]
    counts, timeline = bench.scheduler.counts, bench.endings["r"].output.timeline
    assert 0 < counts.accepted_tokens <= counts.drafted_tokens
    assert (timeline.drafted_tokens, timeline.accepted_tokens) == (
        counts.drafted_tokens,
        counts.accepted_tokens,
    )


def test_what_follows_a_stop_token_in_the_same_step_is_dropped():
    bench = Bench(budget=64, speculative_tokens=3)
    prompt = [5, 6, 7, 9, 5]
    bench.add(a_request("r", prompt, max_tokens=50, stop_token_ids=(7,), logprobs=0))
    coming = iter([(6,), (7, 9, 5, 6)])

    def execute(batch: list[ScheduledRequest]) -> StepResult:
        tokens = next(coming)
        return StepResult(token_ids={"r": tokens}, logprobs={"r": logprobs_of(tokens)})

    bench.execute = execute
    bench.step()
    (produced,) = bench.step()

    assert list(bench.plan.batch[0].token_ids) == [6, 7, 9, 5]
    assert bench.plan.drafted == 3
    assert produced.output.new_token_ids == (7,)
    assert produced.output.logprobs == logprobs_of([7])
    assert produced.output.finish_reason is FinishReason.STOP
    assert produced.output.stop_token_id == 7
    assert bench.scheduler.counts.used_blocks == 0


def test_guesses_never_go_beyond_max_tokens_or_take_the_place_of_other_work():
    bench = Bench(runner=SeeingRunner(), block_size=2, budget=6, speculative_tokens=4)
    bench.add(*(a_request(f"r{n}", [n, 1, 2, 1, 2, 1], max_tokens=9) for n in range(3)))
    while bench.scheduler.requests:
        bench.step()
        assert sum(bench.shares().values()) <= 6
        decoding = [share for share in bench.plan.batch if share.samples]
        assert all(
            share.num_output_tokens + share.num_drafts + 1 <= share.sampling.max_tokens
            for share in decoding
        )

    assert {len(tokens) for tokens in bench.outputs.values()} <= set(range(1, 10))


def test_the_longest_and_latest_match_is_proposed():
    history = [1, 2, 3, 4, 10, 11, 9, 3, 4, 20, 21, 8, 1, 2, 3, 4]

    assert PromptLookup().propose(history, 2) == [10, 11]
    assert PromptLookup().propose([*history[:-4], 5, 3, 4], 3) == [20, 21, 8]
    assert PromptLookup().propose([1, 2, 3], 3) == []
    assert PromptLookup().propose([7], 3) == []
    assert PromptLookup().propose([5, 5, 5], 4) == [5], "what is not there is not made up"


def test_a_long_history_is_indexed_in_bounded_pieces_and_found_in_the_end():
    lookup = PromptLookup()
    history = [*range(3 * MAX_INDEXED), 0, 1]

    proposals = [lookup.propose(history, 2) for _ in range(4)]

    assert proposals == [[2, 3]] * 4
    history[-2:] = [2 * MAX_INDEXED + 5, 2 * MAX_INDEXED + 6]
    assert lookup.propose(history, 1) == [2 * MAX_INDEXED + 7]


# ------------------------------------------------------------ prompts' logprobs


def test_logprobs_of_a_prompt_are_collected_over_chunks_and_come_with_the_first_token():
    bench = Bench(runner=SeeingRunner(), block_size=2, budget=4)
    prompt = [1, 2, 3, 4, 5, 1, 2, 3, 4]
    bench.add(a_request("r", prompt, prompt_logprobs=1, max_tokens=2, ignore_eos=True))

    outputs = [produced.output for _ in range(4) for produced in bench.step()]

    assert outputs[0].prompt_logprobs == logprobs_of(prompt[1:])
    assert outputs[1].prompt_logprobs is None


def test_a_prompt_of_one_token_has_no_logprobs_but_says_so():
    bench = Bench(runner=SeeingRunner(), block_size=2)
    bench.add(a_request("r", [1], prompt_logprobs=1, max_tokens=1))

    assert bench.step()[0].output.prompt_logprobs == ()


def test_a_preemption_before_the_first_token_starts_the_collection_anew():
    bench = Bench(runner=SeeingRunner(), policy="priority", seqs=1, block_size=2, budget=4)
    prompt = [1, 2, 3, 4, 5, 1, 2, 3, 4]
    bench.add(a_request("low", prompt, prompt_logprobs=1, priority=5, max_tokens=1))
    bench.step()
    bench.add(a_request("high", [1], priority=-1, max_tokens=1))
    outputs = [produced.output for _ in range(5) for produced in bench.step()]

    (low,) = [output for output in outputs if output.request_id == "low"]
    assert bench.endings["low"].request.preemptions == 1
    assert low.prompt_logprobs == logprobs_of(prompt[1:])


# ------------------------------------------------------------ prerequisites


class FakeGrammar:
    """Allows `allowed` tokens in order, then the end token."""

    warnings = ("keyword x is not enforced",)

    def __init__(self, allowed: list[int], *, is_ready: bool = True) -> None:
        self.allowed = list(allowed)
        self.is_ready = is_ready
        self.fault: RequestError | None = None
        self.is_finished = False

    def accept(self, token_id: int) -> str | None:
        if not self.allowed:
            self.is_finished = token_id == EOS
            return None if self.is_finished else "nothing may follow"
        return None if self.allowed.pop(0) == token_id else f"token {token_id} is not allowed"


def feed(bench: Bench, tokens: list[int]) -> None:
    """Let the model sample these tokens, one a step."""
    coming = iter(tokens)
    bench.execute = lambda batch: StepResult(
        token_ids={share.request_id: (next(coming),) for share in batch}
    )


def test_a_request_whose_grammar_is_being_compiled_holds_up_nobody():
    bench = Bench(seqs=1)
    slow = FakeGrammar([], is_ready=False)
    bench.add(a_request("slow", [1], grammar=slow), a_request("quick", [2], max_tokens=1))

    bench.step()
    assert bench.shares() == {"quick": 1}
    assert not bench.scheduler.has_runnable
    slow.is_ready = True
    assert bench.scheduler.has_runnable
    feed(bench, [EOS])
    bench.step()

    assert bench.endings["slow"].output.finish_reason is FinishReason.STOP


def test_a_refused_grammar_ends_its_request_with_the_reason():
    bench = Bench()
    grammar = FakeGrammar([], is_ready=False)
    bench.add(a_request("r", [1], grammar=grammar))
    assert not bench.scheduler.has_runnable
    grammar.fault = RequestError(code="invalid_grammar", message="type 'frog' is unknown")
    assert bench.scheduler.has_runnable

    bench.step()

    output = bench.endings["r"].output
    assert output.finish_reason is FinishReason.ERROR
    assert output.error == grammar.fault
    assert bench.scheduler.num_waiting == 0


def test_a_finished_grammar_ends_with_an_end_token_even_if_these_are_ignored():
    bench = Bench()
    bench.add(a_request("r", [1], grammar=FakeGrammar([30, 31]), ignore_eos=True, min_tokens=5))
    feed(bench, [30, 31, EOS])

    bench.run()

    output = bench.endings["r"].output
    assert (output.finish_reason, output.stop_token_id) == (FinishReason.STOP, EOS)
    assert bench.outputs["r"] == [30, 31, EOS]


def test_warnings_of_a_grammar_come_with_the_first_token():
    bench = Bench()
    bench.add(a_request("r", [1], grammar=FakeGrammar([30, 31])))
    feed(bench, [30, 31, EOS])

    outputs = [bench.step()[0].output for _ in range(3)]

    assert [output.warnings for output in outputs] == [FakeGrammar.warnings, (), ()]


def test_a_token_that_the_grammar_does_not_allow_ends_its_request_alone():
    bench = Bench()
    bench.add(a_request("r", [1], grammar=FakeGrammar([30])), a_request("other", [2], max_tokens=2))
    feed(bench, [99, 5, 6])

    bench.run()

    assert bench.endings["r"].output.error.code == "invalid_grammar"
    assert bench.outputs["r"] == []
    assert bench.outputs["other"] == [5, 6]


def with_adapter(name: str, content_hash: str, **options: object) -> EngineRequest:
    lease = FakeLease(content_hash, is_ready=True)
    return a_request(name, [1, 2, 3], adapter=lease, ignore_eos=True, **options)


def test_one_adapter_too_many_waits_and_holds_up_nobody():
    bench = Bench(max_loras=2)
    bench.add(*(with_adapter(f"r{key}", key, max_tokens=4) for key in "abc"))
    bench.add(with_adapter("again", "a"), a_request("base", [1]))

    bench.step()

    assert set(bench.shares()) == {"ra", "rb", "again", "base"}
    bench.run()
    released = [
        item.request.adapter.released for item in bench.endings.values() if item.request.adapter
    ]
    assert released == [1] * 4


def test_an_adapter_without_a_slot_is_not_passed_for_ever():
    bench = Bench(max_loras=1, seqs=2)
    bench.add(with_adapter("a0", "a", max_tokens=3), with_adapter("b", "b", max_tokens=3))
    for number in range(1, 200):
        bench.add(with_adapter(f"a{number}", "a", max_tokens=3))
        bench.step()
        if "b" in bench.outputs:
            break

    assert "b" in bench.outputs
    assert number < 60


# ------------------------------------------------------------ predicted lengths


def ended(estimate: LengthEstimate, length: int, tenant: str = "t") -> EngineRequest:
    request = a_request("r", [1], tenant=tenant, max_tokens=1000)
    request.predicted_tokens = estimate.predict(request)
    request.token_ids.extend([0] * length)
    estimate.observe(request)
    return request


def test_a_tenants_usual_length_is_predicted_and_the_error_is_summed():
    estimate = LengthEstimate()
    for length in range(MIN_SAMPLES):
        assert ended(estimate, 10 * length).predicted_tokens is None

    assert ended(estimate, 70).predicted_tokens == 50, "three quarters of 0, 10, ... 70"
    assert (estimate.predictions, estimate.error_tokens) == (1, 20)
    assert estimate.predict(a_request("r", [1], tenant="t", max_tokens=5)) == 5
    assert estimate.predict(a_request("r", [1], tenant="stranger")) is None


def test_old_lengths_are_forgotten_and_tenants_bounded():
    estimate = LengthEstimate()
    for length in [500] * 100 + [3] * 64:
        ended(estimate, length)
    assert estimate.predict(a_request("r", [1], tenant="t", max_tokens=1000)) == 3

    for number in range(MAX_TENANTS):
        ended(estimate, 1, tenant=f"t{number}")
    assert estimate.predict(a_request("r", [1], tenant="t")) is None


@pytest.mark.parametrize("predicts", [True, False])
def test_predictions_leave_room_for_what_running_requests_will_need(predicts: bool):
    bench = Bench(num_blocks=32, seqs=16, budget=64, predict_lengths=predicts)
    for number in range(MIN_SAMPLES):
        bench.add(a_request(f"warm{number}", [number], max_tokens=40, ignore_eos=True))
        bench.run()
    for number in range(8):
        bench.add(a_request(f"r{number}", [50 + number], max_tokens=40, ignore_eos=True))

    bench.step()
    assert bench.scheduler.num_running == (2 if predicts else 8)
    bench.run()

    preempted = sum(item.request.preemptions for item in bench.endings.values())
    assert (preempted == 0) == predicts
    counts = bench.scheduler.counts
    assert (counts.length_predictions, counts.length_error_tokens) == (8 * predicts, 0)


def test_an_empty_engine_admits_whatever_is_predicted():
    bench = Bench(num_blocks=4, budget=64)
    for number in range(MIN_SAMPLES):
        bench.add(a_request(f"warm{number}", [number] * 3, max_tokens=13, ignore_eos=True))
        bench.run()
    bench.add(a_request("large", [1] * 12, max_tokens=13, ignore_eos=True))

    bench.step()

    assert bench.scheduler.num_running == 1
