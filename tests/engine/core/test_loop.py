"""Messages in, steps, outputs out."""

import math

import pytest

from engine.core.batch import DeviceFatalError
from engine.core.mail import CutOff
from engine.wire.hops import StepRecord
from engine.wire.messages import (
    AbortReason,
    AbortRequests,
    EngineOutputs,
    FinishReason,
)
from tests.engine.core.core_bench import CoreBench
from tests.engine.core.kv_runner import FATAL, FAULTY, POISON, VOCAB, oracle


def test_requests_of_two_clients_get_one_message_each_in_the_trace_of_the_step():
    bench = CoreBench()
    first = bench.add("a", [1, 2], client=1)
    bench.add("b", [3, 4], client=1)
    bench.add("c", [5, 6], client=2)

    bench.turn()

    (step,) = [record for record in bench.records if isinstance(record, StepRecord)]
    assert [(item.client, len(item.body.outputs)) for item in bench.posted] == [(1, 2), (2, 1)]
    for outgoing in bench.posted:
        assert outgoing.context.trace_id == step.trace_id
        assert outgoing.parent_id == step.span_id
    assert [link.request_id for link in bench.posted[0].links] == ["a", "b"]
    assert bench.posted[0].links[0].context == first.context


def test_a_request_joins_a_running_batch_and_both_get_their_own_tokens():
    bench = CoreBench()
    bench.add("a", [1, 2])
    bench.turn()
    bench.add("b", [3, 4])

    bench.run()

    assert bench.tokens("a") == oracle([1, 2], 5)
    assert bench.tokens("b") == oracle([3, 4], 5)
    assert bench.last("b").timeline.max_batch == 2


def test_the_first_and_the_last_output_carry_the_timeline():
    bench = CoreBench()
    bench.add("a", [1, 2])

    bench.run()

    timelines = [output.timeline for output in bench.outputs("a")]
    assert [timeline is not None for timeline in timelines] == [True, False, False, False, True]
    assert timelines[0].finished_ns is None
    last = timelines[-1]
    assert last.received_ns < last.scheduled_ns < last.first_token_ns < last.last_token_ns
    assert last.finished_ns == last.last_token_ns


def test_a_request_is_received_when_the_loop_admits_it():
    bench = CoreBench()

    header = bench.add("a", [1, 2])
    bench.turn()

    hop = bench.received(header)
    assert hop.outcome == "ok"
    assert hop.done_ns == bench.outputs("a")[0].timeline.received_ns
    assert hop.received_ns <= hop.dequeued_ns <= hop.done_ns


def test_an_abort_ends_a_running_request_before_the_next_step():
    bench = CoreBench()
    bench.add("a", [1, 2], max_tokens=50)
    bench.turn()

    header = bench.send(
        AbortRequests(request_ids=("a", "unknown", "a"), reason=AbortReason.OPERATOR), client=0
    )

    output = bench.last("a")
    assert output.finish_reason is FinishReason.ABORT
    assert output.timeline.finished_ns is not None
    assert bench.posted[-1].client == 1
    assert bench.posted[-1].parent_id == header.span_id
    assert not bench.core.has_work
    assert bench.core.scheduler.pool.num_used == 0


def test_an_abort_ends_a_waiting_request_too():
    bench = CoreBench(max_num_seqs=1)
    bench.add("a", [1])
    bench.add("b", [2])
    bench.turn()

    bench.send(AbortRequests(request_ids=("b",), reason=AbortReason.CLIENT_DISCONNECTED))
    bench.run()

    assert bench.last("b").finish_reason is FinishReason.ABORT
    assert bench.last("b").timeline.scheduled_ns is None
    assert bench.tokens("a") == oracle([1], 5)


def test_a_newer_epoch_of_a_client_ends_the_requests_of_the_older_one():
    bench = CoreBench()
    bench.add("old", [1], client=1, client_epoch=1, max_tokens=50)
    bench.add("other", [2], client=2)
    bench.turn()

    bench.add("new", [3], client=1, client_epoch=2)

    assert list(bench.core.scheduler.requests) == ["other", "new"]
    assert bench.core.accounts.finished == {"abort": 1}


def test_a_message_of_a_clients_older_epoch_is_fenced():
    bench = CoreBench()
    bench.add("new", [3], client_epoch=2)

    header = bench.add("late", [1], client_epoch=1)

    assert list(bench.core.scheduler.requests) == ["new"]
    assert bench.received(header).outcome == "fenced"
    assert bench.core.accounts.fenced == 1


def test_the_supervisor_ends_the_requests_of_a_dead_gateway():
    bench = CoreBench()
    bench.add("dead", [1], client=1, client_epoch=4)
    bench.add("alive", [1], client=2, client_epoch=4)

    bench.send(
        AbortRequests(
            request_ids=(),
            reason=AbortReason.CLIENT_DEAD,
            client="gateway-0",
            client_epoch_below=5,
        ),
        client=0,
    )
    late = bench.add("late", [1], client=1, client_epoch=4)

    assert list(bench.core.scheduler.requests) == ["alive"]
    assert bench.received(late).outcome == "fenced"


def test_a_client_that_was_cut_off_loses_its_requests_and_no_other_does():
    bench = CoreBench()
    bench.add("slow", [1], client=1)
    bench.add("good", [2], client=2)
    bench.turn()

    bench.core.take(CutOff(1))
    bench.run()

    assert bench.last("slow").finish_reason is FinishReason.ABORT
    assert bench.tokens("good") == oracle([2], 5)


def test_an_id_that_is_in_use_is_dropped_and_the_first_request_goes_on():
    bench = CoreBench()
    bench.add("a", [1])

    header = bench.add("a", [2])
    bench.run()

    assert bench.received(header).outcome == "unknown"
    assert bench.tokens("a") == oracle([1], 5)


@pytest.mark.parametrize(
    ("prompt", "options"),
    [
        ([], {}),
        ([-1], {}),
        ([VOCAB], {}),
        ([1], {"max_tokens": 0}),
        ([1], {"max_tokens": 2**63}),
        ([1], {"max_tokens": 3, "min_tokens": 4}),
        ([1], {"min_tokens": -1}),
        ([1], {"temperature": -0.1}),
        ([1], {"temperature": math.nan}),
        ([1], {"temperature": math.inf}),
        ([1], {"temperature": 1e308}),
        ([1], {"top_k": 0}),
        ([1], {"top_k": -1}),
        ([1], {"top_p": 0.0}),
        ([1], {"top_p": 1.1}),
        ([1], {"top_p": math.nan}),
        ([1], {"min_p": -0.1}),
        ([1], {"min_p": math.nan}),
        ([1], {"logprobs": -1}),
        ([1], {"logprobs": 10**6}),
        ([1], {"seed": 2**64}),
        ([1], {"stop_token_ids": (VOCAB,)}),
        ([1], {"stop_token_ids": (1,) * 10_000}),
    ],
)
def test_a_value_out_of_bounds_fails_its_request_and_reaches_no_model(
    prompt: list[int], options: dict[str, object]
):
    bench = CoreBench()
    bench.add("good", [2])

    bench.add("bad", prompt, **options)
    bench.run()

    assert bench.last("bad").finish_reason is FinishReason.ERROR
    assert bench.last("bad").error.code == "invalid_request"
    assert bench.tokens("good") == oracle([2], 5)
    ran = {share.request_id for batch in bench.runner.batches for share in batch}
    assert ran == {"good"}


def test_a_prompt_that_does_not_fit_is_refused_at_admission():
    bench = CoreBench()

    header = bench.add("long", [1] * 200)

    assert bench.last("long").error.code == "prompt_too_long"
    assert bench.posted[-1].parent_id == header.span_id
    assert not bench.core.has_work


def test_a_request_that_makes_the_step_raise_fails_alone():
    bench = CoreBench()
    bench.add("good", [1, 2])
    bench.add("poison", [3, POISON])
    bench.add("other", [5, 6])

    bench.run()

    assert bench.last("poison").finish_reason is FinishReason.ERROR
    assert bench.last("poison").error.code == "internal_error"
    assert bench.tokens("poison") == []
    assert bench.tokens("good") == oracle([1, 2], 5)
    assert bench.tokens("other") == oracle([5, 6], 5)
    assert bench.core.scheduler.pool.num_used == 0


def test_a_fault_of_the_sampler_fails_its_request_alone():
    bench = CoreBench()
    bench.add("bad", [FAULTY])
    bench.add("good", [1])

    bench.run()

    assert bench.last("bad").error.message == "the sampler failed"
    assert bench.tokens("good") == oracle([1], 5)


def test_a_broken_device_is_not_a_requests_fault():
    bench = CoreBench()
    bench.add("a", [FATAL])

    with pytest.raises(DeviceFatalError):
        bench.turn()


def test_a_deadline_that_passes_ends_the_request_with_its_code():
    bench = CoreBench()
    bench.add("a", [1], max_tokens=100, deadline_ns=bench.now_ns + 30_000_000)

    bench.run()

    assert bench.last("a").error.code == "deadline_exceeded"
    assert 0 < len(bench.tokens("a")) < 100


def test_every_step_is_recorded_with_what_it_computed():
    bench = CoreBench(max_num_batched_tokens=8)
    bench.add("a", list(range(1, 13)), max_tokens=2)

    bench.run()

    steps = [record for record in bench.records if isinstance(record, StepRecord)]
    shares = [(step.prefill_tokens, step.decode_tokens, step.requests) for step in steps]
    assert shares == [(8, 0, 1), (4, 0, 1), (0, 1, 1)]
    assert [step.step for step in steps] == [1, 2, 3]
    for step in steps:
        assert step.start_ns < step.scheduled_ns < step.executed_ns < step.end_ns
    assert bench.core.accounts.prompt_tokens == 12
    assert bench.core.accounts.generation_tokens == 2


def test_logprobs_come_with_their_tokens():
    bench = CoreBench()
    bench.add("a", [1], logprobs=1)

    bench.run()

    for output in bench.outputs("a"):
        assert output.logprobs[0].token_id == output.new_token_ids[0]


def test_what_is_sent_names_its_step():
    bench = CoreBench()
    bench.add("a", [1], max_tokens=3)

    bench.run()

    assert [message.step for message in bench.bodies(EngineOutputs)] == [1, 2, 3]
