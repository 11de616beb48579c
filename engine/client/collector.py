"""The queue of one request's outputs, merged while nobody reads."""

import asyncio

import msgspec

from engine.client.core_client import EngineDeadError, OutputCollector
from engine.clock import now_ns
from engine.wire.messages import RequestOutput, TokenLogprobs


class RequestOutputCollector(OutputCollector):
    """Holds at most one output: a slow reader gets several steps' tokens as one."""

    def __init__(self, request_id: str, engine_id: str, epoch: int) -> None:
        self.request_id = request_id
        self.engine_id = engine_id
        self.epoch = epoch
        self.send_span_id = ""
        """Span id in the header of the request's `AddRequest`."""
        self.taken = 0
        """Outputs that were read."""
        self.waited_ns = 0
        """How long they lay here unread, summed up, and the longest."""
        self.max_waited_ns = 0
        self.transit_ns = 0
        """How long they took from the engine's send to this process, summed up."""
        self._arrived_ns = 0
        self._pending: RequestOutput | None = None
        self._error: EngineDeadError | None = None
        self._reader: asyncio.Future[None] | None = None
        """Who waits for something to be here."""

    def put(
        self, output: RequestOutput, sent_ns: int | None = None, received_ns: int | None = None
    ) -> None:
        """Add what a step produced.

        Args:
            output: Of this request.
            sent_ns: When the engine sent it; None: not known.
            received_ns: When it came to this process; None: now.
        """
        arrived_ns = now_ns() if received_ns is None else received_ns
        if sent_ns is not None:
            self.transit_ns += max(0, arrived_ns - sent_ns)
        if self._pending is None:
            self._pending, self._arrived_ns = output, arrived_ns
        else:
            self._pending = merge(self._pending, output)
        self._wake()

    def fail(self, error: EngineDeadError) -> None:
        """Make `get` raise once what did arrive has been read."""
        self._error = error
        self._wake()

    async def get(self) -> RequestOutput:
        """Return what has come since the last call; see `OutputCollector.get`."""
        while self._pending is None:
            if self._error is not None:
                raise self._error
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        output, self._pending = self._pending, None
        self._note_taken()
        return output

    def _wake(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None and not reader.done():  # it may have been cancelled
            reader.set_result(None)

    def _note_taken(self) -> None:
        waited_ns = now_ns() - self._arrived_ns
        self.taken += 1
        self.waited_ns += waited_ns
        self.max_waited_ns = max(self.max_waited_ns, waited_ns)


def merge(first: RequestOutput, second: RequestOutput) -> RequestOutput:
    """Return one output that says what both say, in order."""
    return msgspec.structs.replace(
        second,
        new_token_ids=first.new_token_ids + second.new_token_ids,
        logprobs=_joined(first.logprobs, second.logprobs),
        timeline=second.timeline or first.timeline,
        cached_tokens=max(first.cached_tokens, second.cached_tokens),
        prompt_logprobs=_joined(first.prompt_logprobs, second.prompt_logprobs),
        warnings=tuple(dict.fromkeys(first.warnings + second.warnings)),
    )


def _joined(
    first: tuple[TokenLogprobs, ...] | None, second: tuple[TokenLogprobs, ...] | None
) -> tuple[TokenLogprobs, ...] | None:
    if first is None and second is None:
        return None
    return (first or ()) + (second or ())
