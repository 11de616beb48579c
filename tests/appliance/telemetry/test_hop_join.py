"""Halves of hops meet, in any order, or are given up."""

import msgspec

from appliance.telemetry.hop_join import ALIVE_NS, CALL_NS, LATE_NS, LONELY_NS, Hop, HopJoin
from engine.wire.header import new_context
from tests.appliance.telemetry.workload import Wire


def make() -> tuple[HopJoin, list[Hop]]:
    hops: list[Hop] = []
    return HopJoin(hops.append), hops


def halves(name: str = "AddRequest"):
    return Wire().message(name, "gateway-0", "e0", new_context(), 1000)


def test_halves_join_in_either_order():
    sent, received = halves()
    for order in ((sent, received), (received, sent)):
        join, hops = make()
        for half in order:
            join.add(half, 0)
        assert hops == [Hop(sent, received)]
        assert len(join) == 0


def test_messages_of_two_numberings_of_one_process_do_not_mix():
    join, hops = make()
    add, got_add = halves("AddRequest")
    abort, got_abort = halves("AbortRequests")
    assert (add.sender, add.sequence) == (abort.sender, abort.sequence)

    for half in (add, abort, got_abort, got_add):
        join.add(half, 0)

    assert hops == [Hop(abort, got_abort), Hop(add, got_add)]


def test_a_send_to_nobody_is_lost_after_five_seconds():
    join, hops = make()
    sent, _ = halves()
    join.add(sent, 0)

    join.expire(LONELY_NS - 1)
    assert hops == []
    join.expire(LONELY_NS)
    assert hops == [Hop(sent, None, "not_confirmed", LONELY_NS)]


def test_a_receiver_that_lives_gets_more_time_and_a_call_most():
    join, hops = make()
    join.lives("e0", 0)
    sent, _ = halves()
    call, _ = halves("UtilityCall")
    join.add(sent, 0)
    join.add(call, 0)

    join.expire(LONELY_NS)
    assert hops == []
    join.expire(ALIVE_NS)
    assert [hop.sent for hop in hops] == [sent]
    join.expire(CALL_NS)
    assert [hop.sent for hop in hops] == [sent, call]


def test_a_sender_that_was_stopped_may_tell_later_than_one_that_is_gone():
    join, hops = make()
    sent, received = halves()
    join.lives("gateway-0", 0)
    join.add(received, 0)
    join.expire(ALIVE_NS - 1)
    join.add(sent, ALIVE_NS - 1)
    assert hops == [Hop(sent, received)]

    join.add(received, 0)
    join.died("gateway-0", 0)
    join.expire(LONELY_NS)
    assert hops[1:] == [Hop(None, received, "send_not_reported")]


def test_the_receivers_death_loses_what_it_had_not_confirmed():
    join, hops = make()
    join.lives("e0", 0)
    sent, received = halves()
    join.add(sent, 0)
    join.died("e1", 10)
    assert hops == []
    join.died("e0", 20)

    assert hops == [Hop(sent, None, "receiver_died", 20)]
    join.add(received, 30)
    join.expire(30 + LONELY_NS)
    assert hops[1:] == [Hop(None, received, "send_not_reported")]


def test_a_successor_does_not_excuse_what_went_to_its_predecessor():
    join, hops = make()
    sent, _ = halves()
    join.lives("e0", sent.sent_ns + 1)
    join.add(sent, 0)

    join.expire(LONELY_NS)

    assert [hop.lost for hop in hops] == ["not_confirmed"]


def test_a_send_that_the_socket_refused_is_lost_at_once():
    join, hops = make()
    sent, _ = halves()
    join.add(msgspec.structs.replace(sent, error="no route"), 5)

    assert [(hop.received, hop.lost) for hop in hops] == [(None, "no route")]


def test_other_kinds_appear_only_when_late_fenced_or_undecodable():
    join, hops = make()
    sent, beat = halves("Heartbeat")
    replace = msgspec.structs.replace
    late = replace(beat, received_ns=beat.sent_ns + LATE_NS + 1)
    fenced = replace(beat, outcome="fenced")
    for half in (sent, beat, late, fenced):
        join.add(half, 0)

    assert hops == [Hop(None, late), Hop(None, fenced)]
    assert len(join) == 0


def test_the_join_is_bounded_and_counts_what_it_gives_up():
    hops: list[Hop] = []
    join = HopJoin(hops.append, max_pending=2)
    wire = Wire()
    for _ in range(3):
        sent, _ = wire.message("AddRequest", "gateway-0", "e0", new_context(), 0)
        join.add(sent, 0)

    assert (len(join), join.evicted) == (2, 1)
    assert [hop.lost for hop in hops] == ["too_many_pending"]


def test_the_end_emits_all_that_waits():
    join, hops = make()
    sent, _ = halves("AddRequest")
    _, received = halves("EngineOutputs")
    join.add(sent, 0)
    join.add(received, 0)
    join.finish(1)

    assert [(hop.sent, hop.received) for hop in hops] == [(sent, None), (None, received)]
