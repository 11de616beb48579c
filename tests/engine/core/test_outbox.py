"""What waits for a client, over a real socket."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from engine.core.mail import Outgoing
from engine.core.outbox import Outbox, Sender
from engine.core.records import RecordBuffer
from engine.wire.addresses import output_address
from engine.wire.codec import ENGINE_CODEC
from engine.wire.header import new_context
from engine.wire.hops import HopLink, HopRecord
from engine.wire.messages import (
    Body,
    EngineOutputs,
    FinishReason,
    Heartbeat,
    RequestOutput,
    UtilityReply,
)
from engine.wire.sockets import HeaderMaker, MessageCounts, bind_pull, connect_push, split


class Line:
    """An outbox, and a client at its other end that is there when it is told to read."""

    def __init__(self, run_dir: Path, limit: int = 4) -> None:
        self.address = output_address(run_dir, "gateway-0")
        self.context: Any = zmq.Context()
        self.push: Any = connect_push(self.context, self.address, linger_ms=0)
        self.pull: Any = None
        self.counts = MessageCounts()
        self.records = RecordBuffer()
        self.sender = Sender(HeaderMaker("e0", 3), self.counts, self.records)
        self.outbox = Outbox("gateway-0", self.push, limit)

    @property
    def hops(self) -> tuple[HopRecord, ...]:
        """What was recorded since it was last asked for."""
        batch = self.records.take()
        return batch.hops if batch else ()

    def put(self, body: Body) -> bool:
        links = ()
        if isinstance(body, EngineOutputs):
            links = tuple(HopLink(output.request_id, new_context()) for output in body.outputs)
        return self.outbox.push(Outgoing(1, body, new_context(), "parent", 5, links))

    def read(self) -> list[Body]:
        """Let the client read all there is."""
        if self.pull is None:
            self.pull = bind_pull(self.context, self.address)
        assert self.push.poll(5000, zmq.POLLOUT)
        waiting = len(self.outbox)
        self.outbox.flush(self.sender)
        assert not self.outbox
        return [split(self.pull.recv_multipart(), ENGINE_CODEC).body for _ in range(waiting)]

    def close(self) -> None:
        for socket in (self.push, self.pull):
            if socket is not None:
                socket.close(0)
        self.context.term()


@pytest.fixture
def line(run_dir: Path) -> Iterator[Line]:
    line = Line(run_dir)
    yield line
    line.close()


def a_token(name: str, token: int, finish: FinishReason | None = None) -> EngineOutputs:
    output = RequestOutput(request_id=name, new_token_ids=(token,), finish_reason=finish)
    return EngineOutputs(step=token, outputs=(output,))


def a_beat() -> Heartbeat:
    return Heartbeat(step=1, phase="idle", running=0, waiting=0, last_token_ns=None)


def test_messages_wait_for_a_client_that_is_not_there_yet_and_keep_their_order(line: Line):
    for token in range(4):
        assert line.put(a_token("r", token))
    line.outbox.flush(line.sender)
    assert len(line.outbox) == 4

    bodies = line.read()

    assert [body.step for body in bodies] == [0, 1, 2, 3]
    assert line.counts.sent == {"EngineOutputs": 4}


def test_a_sent_message_leaves_its_half_of_the_hop(line: Line):
    line.put(a_token("r", 1))
    line.put(a_beat())

    line.read()

    (hop,) = line.hops
    assert (hop.message, hop.sender, hop.sender_epoch) == ("EngineOutputs", "e0", 3)
    assert (hop.destination, hop.parent_id, hop.start_ns) == ("gateway-0", "parent", 5)
    assert hop.links[0].request_id == "r"
    assert hop.size_bytes > 0
    assert line.counts.sent["Heartbeat"] == 1


def test_overflow_cuts_the_client_off_once(line: Line):
    for token in range(4):
        line.put(a_token("r", token))

    assert not line.put(a_token("r", 4))
    assert len(line.outbox) == 0
    assert [line.put(a_token("r", token)) for token in range(9)] == [True] * 9
    assert len(line.outbox) == 4


def test_a_client_that_comes_back_learns_what_has_ended_while_it_was_cut_off(line: Line):
    line.put(a_token("ended", 1, FinishReason.STOP))
    line.put(UtilityReply(call_id="c"))
    line.put(a_token("running", 2))
    line.put(a_beat())
    assert not line.put(a_beat())

    reply, outputs = line.read()

    assert reply == UtilityReply(call_id="c")
    (end,) = outputs.outputs
    assert (end.request_id, end.finish_reason) == ("ended", FinishReason.ABORT)
    assert end.new_token_ids == ()
    assert end.error.message == "the client did not read its outputs"


def test_a_client_that_has_read_all_can_be_cut_off_again(line: Line):
    for token in range(5):
        line.put(a_token("r", token))
    line.put(a_token("s", 1))
    line.read()

    assert [line.put(a_token("r", token)) for token in range(5)] == [True] * 4 + [False]


def test_nothing_is_sent_past_what_waits(line: Line):
    late = Outgoing(1, a_token("r", 2), new_context(), "parent", 5)
    assert not line.outbox.send_now(late, line.sender), "nobody is there"
    line.put(a_token("r", 1))

    assert not line.outbox.send_now(late, line.sender)
    (first,) = line.read()
    assert first == a_token("r", 1)
    assert line.outbox.send_now(late, line.sender)
    assert split(line.pull.recv_multipart(), ENGINE_CODEC).body == a_token("r", 2)
