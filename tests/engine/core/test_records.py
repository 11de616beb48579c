"""The bounded buffer of trace records."""

from engine.core.records import RecordBuffer
from engine.wire.hops import HopReceived, StepRecord


def a_hop(sequence: int) -> HopReceived:
    return HopReceived("gateway-0", 1, sequence, "AddRequest", "e0", 2, 3, 4, 1)


def a_step(number: int) -> StepRecord:
    return StepRecord("e0", 1, number, "t", "s", 1, 2, 3, 4, 0, 1, 1, 1, 0)


def test_records_come_out_in_order_and_in_batches():
    buffer = RecordBuffer(batch=2)
    for number in range(3):
        buffer.add(a_hop(number))
    buffer.add(a_step(0))

    first, second = buffer.take(), buffer.take()

    assert [hop.sequence for hop in first.hops] == [0, 1]
    assert [step.step for step in first.steps] == [0]
    assert [hop.sequence for hop in second.hops] == [2]
    assert buffer.take() is None


def test_what_does_not_fit_is_dropped_and_counted():
    buffer = RecordBuffer(capacity=2)
    for number in range(5):
        buffer.add(a_hop(number))

    batch = buffer.take()

    assert [hop.sequence for hop in batch.hops] == [0, 1]
    assert batch.dropped == buffer.dropped == 3
