"""The queue of one request's outputs, merged while nobody reads."""

import asyncio

import msgspec

from engine.client.core_client import EngineDeadError, OutputCollector
from engine.wire.messages import RequestOutput, TokenLogprobs


class RequestOutputCollector(OutputCollector):
    """Holds at most one output: a slow reader gets several steps' tokens as one."""

    def __init__(self, request_id: str, engine_id: str, epoch: int) -> None:
        self.request_id = request_id
        self.engine_id = engine_id
        self.epoch = epoch
        self.send_span_id = ""
        """Span id in the header of the request's `AddRequest`."""
        self._pending: RequestOutput | None = None
        self._error: EngineDeadError | None = None
        self._ready = asyncio.Event()

    def put(self, output: RequestOutput) -> None:
        """Add what a step produced."""
        self._pending = output if self._pending is None else merge(self._pending, output)
        self._ready.set()

    def fail(self, error: EngineDeadError) -> None:
        """Make `get` raise once what did arrive has been read."""
        self._error = error
        self._ready.set()

    async def get(self) -> RequestOutput:
        """Return what has come since the last call; see `OutputCollector.get`."""
        await self._ready.wait()
        output, self._pending = self._pending, None
        if output is None:
            assert self._error is not None
            raise self._error
        if self._error is None:
            self._ready.clear()
        return output


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
