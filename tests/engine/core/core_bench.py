"""An `EngineCore` without sockets: messages are handed in, what it posts is kept."""

import itertools
from typing import TypeVar

import msgspec

from engine.config import ClientEndpoint, EngineConfig
from engine.core.batch import ModelFacts, ModelRunner
from engine.core.loop import EngineCore
from engine.core.mail import Outgoing, Received
from engine.wire.calls import AnyCall
from engine.wire.header import PROTOCOL_VERSION, Header, new_context
from engine.wire.hops import HopReceived, HopRecord, StepRecord
from engine.wire.messages import (
    AddRequest,
    Body,
    EngineOutputs,
    RequestOutput,
    SamplingParams,
    UtilityCall,
    UtilityReply,
)
from tests.engine.core.kv_runner import KvRunner

BodyT = TypeVar("BodyT", bound=Body)
CLIENTS = ("supervisor", "gateway-0", "gateway-1")


class CoreBench:
    """See the module. The clock ticks 1 ms each time it is read."""

    def __init__(
        self,
        runner: KvRunner | None = None,
        *,
        loaded: tuple[ModelRunner, ModelFacts] | None = None,
        **options: object,
    ) -> None:
        """Around a runner without a model, or around a real one that is loaded already."""
        self.runner = runner or KvRunner()
        self.now_ns = 0
        self.posted: list[Outgoing] = []
        self.records: list[HopRecord | StepRecord] = []
        self.beats: list[str] = []
        self.wakes = 0
        self.recording = True
        self._sequence = itertools.count(1)
        clients = tuple(ClientEndpoint(name=name, input="", output="") for name in CLIENTS)
        config = EngineConfig(
            engine_id="e0",
            epoch=3,
            model="hash",
            model_name="m",
            clients=clients,
            **{"block_size": self.runner.block_size, **options},
        )
        real, facts = loaded or (self.runner, self.runner.load(self.progress))
        self.core = EngineCore(config, real, facts, self, clock=self.clock)
        self.runner.batches.clear()

    def clock(self) -> int:
        self.now_ns += 1_000_000
        return self.now_ns

    # ------------------------------------------------------------ the shell

    def post(self, outgoing: Outgoing) -> None:
        self.posted.append(outgoing)

    def record(self, record: HopRecord | StepRecord) -> None:
        self.records.append(record)

    def set_recording(self, *, recording: bool) -> None:
        self.recording = recording

    def beat(self, phase: str) -> None:
        self.beats.append(phase)

    def wake(self) -> None:
        self.wakes += 1

    def progress(self, phase: str, done: int, total: int) -> None:
        self.beats.append(f"{phase} {done}/{total}")

    # ------------------------------------------------------------ messages in

    def send(self, body: Body, client: int = 1, client_epoch: int = 1) -> Header:
        context = new_context()
        header = Header(
            version=PROTOCOL_VERSION,
            engine_epoch=3,
            sender=CLIENTS[client],
            sender_epoch=client_epoch,
            sequence=next(self._sequence),
            trace_id=context.trace_id,
            span_id=context.span_id,
            flags=0,
            sent_ns=self.now_ns,
        )
        self.core.take(Received(client, header, body, self.now_ns))
        return header

    def add(
        self,
        name: str,
        prompt: list[int],
        client: int = 1,
        client_epoch: int = 1,
        **options: object,
    ) -> Header:
        deadline_ns = options.pop("deadline_ns", None)
        sampling = SamplingParams(**{"max_tokens": 5, "temperature": 0.0, **options})
        message = AddRequest(
            request_id=name,
            prompt_token_ids=tuple(prompt),
            sampling=sampling,
            arrival_ns=0,
            deadline_ns=deadline_ns,
        )
        return self.send(message, client, client_epoch)

    def call(self, call: AnyCall, timeout_s: float = 60.0, call_id: str = "c1") -> Header:
        deadline_ns = self.now_ns + int(timeout_s * 1e9)
        return self.send(UtilityCall(call_id=call_id, deadline_ns=deadline_ns, call=call), client=0)

    def turn(self) -> None:
        """One turn of the loop."""
        if self.core.has_work:
            self.core.step()
        self.core.utilities.advance()

    def run(self) -> None:
        self.turn()
        while self.core.has_work:
            self.turn()

    # ------------------------------------------------------------ what came out

    def bodies(self, kind: type[BodyT]) -> list[BodyT]:
        return [outgoing.body for outgoing in self.posted if isinstance(outgoing.body, kind)]

    def outputs(self, name: str) -> list[RequestOutput]:
        messages = self.bodies(EngineOutputs)
        return [item for message in messages for item in message.outputs if item.request_id == name]

    def tokens(self, name: str) -> list[int]:
        return [token for output in self.outputs(name) for token in output.new_token_ids]

    def last(self, name: str) -> RequestOutput:
        """The last output of a request, the only one that ends it."""
        outputs = self.outputs(name)
        assert [bool(output.finish_reason) for output in outputs].count(True) == 1
        assert outputs[-1].finish_reason
        return outputs[-1]

    def reply(self, kind: type, call_id: str = "c1") -> object:
        """The result of a call, which was answered once."""
        (reply,) = [body for body in self.bodies(UtilityReply) if body.call_id == call_id]
        assert reply.error is None
        return msgspec.msgpack.decode(reply.result, type=kind)

    def refusal(self, call_id: str = "c1") -> str:
        (reply,) = [body for body in self.bodies(UtilityReply) if body.call_id == call_id]
        assert reply.error is not None
        return reply.error.code

    def received(self, header: Header) -> HopReceived:
        (hop,) = [
            record
            for record in self.records
            if isinstance(record, HopReceived)
            and (record.sender, record.sequence) == (header.sender, header.sequence)
        ]
        return hop
