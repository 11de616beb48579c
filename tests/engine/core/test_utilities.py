"""Sleep, wake, ping and state: each answered exactly once."""

import math

import pytest

from engine.wire.calls import (
    DumpState,
    EngineState,
    Ping,
    Pong,
    Sleep,
    SleepReport,
    Wake,
    WakeReport,
)
from engine.wire.messages import FinishReason
from tests.engine.core.core_bench import CoreBench
from tests.engine.core.kv_runner import EOS, WEIGHTS_BYTES, next_token, oracle


def asleep(level: int = 1) -> CoreBench:
    bench = CoreBench()
    bench.call(Sleep(level=level), call_id="to-sleep")
    assert bench.core.phase == "asleep"
    return bench


@pytest.mark.parametrize("level", [1, 2])
def test_sleep_gives_memory_back_and_says_how_much(level: int):
    bench = CoreBench()

    bench.call(Sleep(level=level))

    report = bench.reply(SleepReport)
    assert report.level == level
    assert report.freed_bytes == WEIGHTS_BYTES
    assert report.resident_before_bytes - report.resident_after_bytes == report.freed_bytes
    assert report.weights_bytes == WEIGHTS_BYTES
    assert bench.core.power.level == level
    assert bench.beats[-1] == "sleep"


def test_sleeping_already_is_a_no_op():
    bench = asleep(level=2)

    bench.call(Sleep(level=1))

    report = bench.reply(SleepReport)
    assert (report.level, report.freed_bytes) == (2, 0)


def test_waking_when_awake_is_a_no_op():
    bench = CoreBench()

    bench.call(Wake())

    assert bench.reply(WakeReport).canary_ok


def test_after_a_wake_the_same_tokens_come_out():
    bench = asleep()

    bench.call(Wake())
    bench.add("a", [1, 2])
    bench.run()

    report = bench.reply(WakeReport)
    assert report.canary_ok
    assert report.resident_bytes > WEIGHTS_BYTES
    assert bench.tokens("a") == oracle([1, 2], 5)
    assert bench.beats[-2:] == ["wake", f"weights {WEIGHTS_BYTES}/{WEIGHTS_BYTES}"]


def test_a_model_that_answers_otherwise_after_the_wake_is_noticed():
    bench = asleep()
    bench.runner.spoiled = True

    bench.call(Wake())

    assert bench.reply(WakeReport).canary_ok is False


def test_a_wake_that_fails_leaves_the_engine_asleep():
    bench = asleep()
    restore = bench.runner.restore
    bench.runner.restore = lambda progress: 1 / 0
    bench.call(Wake(), call_id="fails")
    bench.runner.restore = restore

    assert bench.refusal("fails") == "internal_error"
    assert bench.core.phase == "asleep"
    bench.call(Wake(), call_id="works")
    assert bench.reply(WakeReport, "works").canary_ok


def test_a_sleep_that_waits_lets_requests_finish_and_rejects_new_ones():
    bench = CoreBench()
    bench.add("running", [1, 2])
    bench.turn()

    bench.call(Sleep(mode="wait"))
    bench.add("new", [3])
    assert bench.core.phase == "sleep"
    bench.run()

    assert bench.tokens("running") == oracle([1, 2], 5)
    assert bench.last("new").finish_reason is FinishReason.REJECTED
    assert bench.last("new").error.code == "engine_asleep"
    assert bench.reply(SleepReport).freed_bytes == WEIGHTS_BYTES


def test_a_sleep_that_waits_too_long_fails_and_the_engine_serves_on():
    bench = CoreBench()
    bench.add("running", [1, 2], max_tokens=100)
    bench.turn()

    bench.call(Sleep(mode="wait", timeout_s=0.02))
    bench.run()
    bench.add("new", [3])
    bench.run()

    assert bench.refusal() == "deadline_exceeded"
    assert bench.tokens("running") == oracle([1, 2], 100)
    assert bench.tokens("new") == oracle([3], 5)


def test_a_sleep_that_aborts_ends_running_requests_and_rejects_untouched_ones():
    bench = CoreBench(max_num_seqs=1)
    bench.add("running", [1, 2], max_tokens=100)
    bench.add("waiting", [3])
    bench.turn()

    header = bench.call(Sleep(mode="abort"))

    running, waiting = bench.last("running"), bench.last("waiting")
    assert (running.finish_reason, running.error.code) == (FinishReason.ABORT, "engine_asleep")
    assert (waiting.finish_reason, waiting.error.code) == (FinishReason.REJECTED, "engine_asleep")
    assert bench.reply(SleepReport).freed_bytes == WEIGHTS_BYTES
    assert {outgoing.parent_id for outgoing in bench.posted[-3:]} == {header.span_id}


@pytest.mark.parametrize("second", [Sleep(), Wake(), Ping(deep=True)])
def test_while_a_sleep_waits_other_calls_find_the_engine_busy(second: Sleep | Wake | Ping):
    bench = CoreBench()
    bench.add("running", [1, 2])
    bench.turn()
    bench.call(Sleep(mode="wait"), call_id="first")

    bench.call(second, call_id="second")
    bench.run()

    assert bench.refusal("second") == "busy"
    assert bench.reply(SleepReport, "first").freed_bytes == WEIGHTS_BYTES


def test_a_request_to_a_sleeping_engine_is_rejected():
    bench = asleep()

    bench.add("a", [1])

    assert bench.last("a").finish_reason is FinishReason.REJECTED
    assert bench.last("a").error.code == "engine_asleep"


def test_state_and_a_shallow_ping_answer_while_asleep_and_a_deep_one_does_not():
    bench = asleep()

    bench.call(DumpState(), call_id="state")
    bench.call(Ping(deep=False), call_id="shallow")
    bench.call(Ping(deep=True), call_id="deep")

    assert bench.reply(EngineState, "state").sleep_level == 1
    assert bench.reply(Pong, "shallow").token_id is None
    assert bench.refusal("deep") == "invalid"


def test_a_deep_ping_makes_a_token_through_the_schedulers_queue():
    bench = CoreBench()
    bench.add("other", [1, 2])

    bench.call(Ping(deep=True))
    bench.run()

    assert bench.reply(Pong).token_id == next_token([EOS])
    ran = {share.request_id for batch in bench.runner.batches for share in batch}
    assert ran == {"other", "engine.ping-1"}
    assert bench.core.accounts.finished == {"length": 1}, "a probe is no request of a client"


def test_a_deep_ping_that_gets_no_token_by_its_deadline_is_told_so():
    bench = CoreBench(max_num_seqs=1)
    bench.add("hog", [1, 2], max_tokens=100)
    bench.turn()

    bench.call(Ping(deep=True), timeout_s=0.02)
    bench.run()

    assert bench.refusal() == "deadline_exceeded"
    assert bench.tokens("hog") == oracle([1, 2], 100)


def test_a_call_that_comes_after_its_deadline_is_not_done():
    bench = CoreBench()

    bench.call(Sleep(), timeout_s=-1.0)

    assert bench.refusal() == "deadline_exceeded"
    assert bench.core.power.level == 0


@pytest.mark.parametrize("timeout_s", [math.nan, math.inf, -1.0, 1e12])
def test_a_sleep_with_an_impossible_time_out_is_refused(timeout_s: float):
    bench = CoreBench()

    bench.call(Sleep(timeout_s=timeout_s))

    assert bench.refusal() == "invalid"
    bench.add("a", [1])
    bench.run()
    assert bench.tokens("a") == oracle([1], 5)


def test_the_state_shows_live_requests_and_blocks():
    bench = CoreBench(max_num_seqs=1)
    bench.add("running", [1, 2, 3, 4, 5])
    bench.add("waiting", [3], client=2)
    bench.turn()

    bench.call(DumpState())

    state = bench.reply(EngineState)
    rows = [(row.request_id, row.client, row.state, row.num_blocks) for row in state.requests]
    assert rows == [("running", "gateway-0", "running", 2), ("waiting", "gateway-1", "waiting", 0)]
    assert state.free_blocks == state.num_blocks - 2
    assert (state.phase, state.step) == ("step", 1)


def test_a_reply_is_sent_under_the_call_and_ends_its_process_span():
    bench = CoreBench()
    bench.add("running", [1, 2])
    bench.turn()

    header = bench.call(Sleep(mode="wait"))
    bench.run()

    reply = bench.posted[-1]
    assert (reply.client, reply.call, reply.parent_id) == (0, "Sleep", header.span_id)
    assert reply.context.trace_id == header.trace_id
    assert bench.received(header).done_ns == reply.start_ns


def test_pending_calls_are_refused_when_the_engine_ends():
    bench = CoreBench(max_num_seqs=1)
    bench.add("running", [1, 2])
    bench.turn()
    bench.call(Ping(deep=True), call_id="probe")

    bench.core.utilities.shut_down()

    assert bench.refusal("probe") == "shutting_down"
