"""What a request's timeline tells of its waiting: for what, since when ready, how often it lost."""

import pytest

from engine.core.request import EngineRequest
from engine.wire.messages import RequestError, Timeline
from tests.engine.core.scheduler_bench import Bench, a_request
from tests.engine.core.test_scheduler_machine import FakeLease


class FakeGrammar:
    """A grammar that allows everything once the test says that it is compiled."""

    def __init__(self) -> None:
        self.is_ready = False
        self.fault: RequestError | None = None
        self.warnings: tuple[str, ...] = ()

    def begin_mask(self) -> None: ...

    def accept(self, token_id: int) -> str | None:
        del token_id


def ended(bench: Bench, request: EngineRequest) -> Timeline:
    timeline = bench.endings[request.request_id].output.timeline
    assert timeline is not None
    return timeline


def test_a_request_that_runs_at_once_has_waited_for_nothing():
    bench, request = Bench(), a_request("r", [1, 2, 3])
    bench.add(request)

    bench.run()

    timeline = ended(bench, request)
    assert timeline.waited_for is None
    assert timeline.prepared_ns is None
    assert timeline.resumed_ns == ()
    assert timeline.recomputed_tokens == 0


def test_one_without_a_place_has_waited_for_seats():
    bench = Bench(seqs=1)
    first, second = a_request("first", [1, 2]), a_request("second", [3, 4])
    bench.add(first, second)

    bench.run()

    assert ended(bench, first).waited_for is None
    assert ended(bench, second).waited_for == "seats"


def test_one_that_came_when_the_wait_was_over_has_not_waited():
    bench = Bench(seqs=1)
    bench.add(a_request("first", [1, 2]), a_request("second", [3, 4]))
    bench.run()
    third = a_request("third", [5, 6])
    bench.add(third)

    bench.run()

    assert ended(bench, third).waited_for is None


def test_one_without_blocks_has_waited_for_them():
    bench = Bench(num_blocks=8, prefix_caching=False)  # 32 tokens
    first, second = a_request("first", list(range(12))), a_request("second", list(range(30)))
    bench.add(first)
    bench.step()
    bench.add(second)

    bench.run()

    assert ended(bench, second).waited_for == "kv_blocks"


def test_one_whose_step_was_full_has_waited_for_the_budget():
    bench = Bench(budget=16)
    first, second = a_request("first", list(range(40))), a_request("second", [1, 2, 3])
    bench.add(first, second)

    bench.run()

    assert ended(bench, second).waited_for == "budget"


def test_a_grammar_is_waited_for_until_it_is_compiled():
    bench, grammar = Bench(), FakeGrammar()
    request = a_request("r", [1, 2, 3], grammar=grammar)
    bench.add(request)
    bench.step()
    grammar.is_ready = True
    ready_ns = bench.now_ns + bench.step_ns

    bench.run()

    timeline = ended(bench, request)
    assert timeline.waited_for == "grammar"
    assert timeline.prepared_ns == ready_ns
    assert timeline.scheduled_ns == ready_ns


def test_what_it_waited_for_last_is_told_and_when_its_grammar_was_there():
    bench, grammar = Bench(seqs=1), FakeGrammar()
    bench.add(a_request("first", [1, 2], max_tokens=20))
    request = a_request("r", [1, 2, 3], grammar=grammar)
    bench.add(request)
    bench.step()
    grammar.is_ready = True

    bench.run()

    timeline = ended(bench, request)
    assert timeline.waited_for == "seats"
    assert timeline.prepared_ns is not None
    assert timeline.scheduled_ns is not None
    assert timeline.prepared_ns < timeline.scheduled_ns


def test_a_prerequisite_that_is_there_already_was_ready_on_arrival():
    bench = Bench(max_loras=1)
    request = a_request("r", [1, 2, 3], adapter=FakeLease("a", is_ready=True))
    bench.add(request)

    bench.run()

    timeline = ended(bench, request)
    assert timeline.prepared_ns == timeline.received_ns
    assert timeline.waited_for is None


def test_an_adapter_without_a_slot_is_what_it_waited_for():
    bench = Bench(max_loras=1, seqs=2)
    bench.add(a_request("first", [1, 2], max_tokens=9, adapter=FakeLease("a", is_ready=True)))
    second = a_request("second", [1, 2], adapter=FakeLease("b", is_ready=True))
    bench.add(second, *(a_request(f"r{k}", [k, k], max_tokens=9) for k in range(3)))

    bench.run()

    assert ended(bench, second).waited_for == "adapter"


def test_an_adapter_that_is_loaded_meanwhile_is_too():
    bench, lease = Bench(max_loras=1), FakeLease("a", is_ready=False)
    request = a_request("r", [1, 2], adapter=lease)
    bench.add(request)
    bench.step()
    lease.is_ready = True

    bench.run()

    assert ended(bench, request).waited_for == "adapter"


def test_one_that_is_ended_in_the_queue_tells_what_it_waited_for():
    bench = Bench(seqs=1)
    waiting = a_request("second", [3, 4])
    bench.add(a_request("first", [1, 2], max_tokens=20), waiting)
    bench.step()

    bench.abort(waiting)

    timeline = ended(bench, waiting)
    assert timeline.waited_for == "seats"
    assert timeline.scheduled_ns is None


@pytest.mark.parametrize("prefix_caching", [True, False])
def test_a_preempted_request_tells_when_it_got_on_and_what_it_computed_again(prefix_caching: bool):
    bench = Bench(num_blocks=8, prefix_caching=prefix_caching)  # 32 tokens
    first = a_request("first", list(range(8)), max_tokens=20, ignore_eos=True)
    second = a_request("second", list(range(50, 58)), max_tokens=20, ignore_eos=True)
    bench.add(first, second)

    bench.run()

    timeline = ended(bench, second)
    assert timeline.preempted_ns
    assert len(timeline.resumed_ns) == len(timeline.preempted_ns)
    for lost_ns, back_ns in zip(timeline.preempted_ns, timeline.resumed_ns, strict=True):
        assert lost_ns < back_ns
    assert timeline.recomputed_tokens > 0 or prefix_caching
    assert ended(bench, first).resumed_ns == ()
