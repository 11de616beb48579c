"""Records on their way to the hub: batched, bounded, and what is dropped is counted."""

import asyncio
from typing import Final, TypeVar

from appliance.control_link.messages import GatewayRecords
from appliance.gateway.journey import Journey
from appliance.telemetry.records import RequestAccepted, RequestFirstToken, RequestRecord
from engine.clock import now_ns
from engine.wire.hops import HopRecord

RecordT = TypeVar("RecordT")

MAX_BUFFERED: Final = 8192
MAX_HOPS_PER_BATCH: Final = 2048


class RecordBuffer:
    """Collects records between two batches.

    Args:
        gateway: Name of this process.
        epoch: Its epoch.
        limit: Most records of each kind to keep.
    """

    def __init__(self, gateway: str, epoch: int, limit: int = MAX_BUFFERED) -> None:
        self._gateway = gateway
        self._epoch = epoch
        self._limit = limit
        self._accepted: list[RequestAccepted] = []
        self._first_tokens: list[RequestFirstToken] = []
        self._finished: list[RequestRecord] = []
        self._hops: list[HopRecord] = []
        self.enabled = True
        """False: hops and ended requests are not recorded; the live table goes on."""
        self.keeps_content = False
        """False: prompts and outputs of requests that end are forgotten."""
        self.dropped = 0
        self.announced = asyncio.Event()
        """Set when a request was accepted: the hub must know it before this process may die."""

    def __len__(self) -> int:
        kinds = (self._accepted, self._first_tokens, self._finished, self._hops)
        return sum(len(kind) for kind in kinds)

    def accepted(self, journey: Journey) -> None:
        """A request became a row of the live table."""
        context, parameters = journey.context, journey.parameters
        assert parameters is not None
        record = RequestAccepted(
            request_id=context.request_id,
            trace_id=context.trace.trace_id,
            gateway=self._gateway,
            gateway_epoch=self._epoch,
            route=journey.route,
            model=journey.model or parameters.model,
            key_id=context.key.key_id if context.key else None,
            stream=parameters.stream,
            choices=len(journey.choices),
            prompt_tokens=journey.prompt_tokens,
            max_tokens=journey.max_tokens or 0,
            received_ns=context.received_ns,
            accepted_ns=now_ns(),
        )
        self._add(self._accepted, record)
        self.announced.set()

    def first_token(self, request_id: str, engine_id: str, engine_epoch: int) -> None:
        """A request's first token is here."""
        record = RequestFirstToken(
            request_id=request_id, at_ns=now_ns(), engine_id=engine_id, engine_epoch=engine_epoch
        )
        self._add(self._first_tokens, record)

    def finished(self, journey: Journey) -> None:
        """A request ended, accepted or not."""
        if not self.keeps_content:
            journey.content = None  # it was switched off while the request ran
        if self.enabled:
            self._add(self._finished, journey.record(self._gateway, self._epoch))

    def hop(self, hop: HopRecord) -> None:
        """This process's half of a hop."""
        if self.enabled:
            self._add(self._hops, hop)

    def take(self) -> GatewayRecords | None:
        """Return the next batch and forget it; None when there is nothing."""
        if not (self._accepted or self._first_tokens or self._finished or self._hops):
            return None
        hops, self._hops = self._hops[:MAX_HOPS_PER_BATCH], self._hops[MAX_HOPS_PER_BATCH:]
        batch = GatewayRecords(
            accepted=tuple(self._accepted),
            first_tokens=tuple(self._first_tokens),
            finished=tuple(self._finished),
            hops=tuple(hops),
            dropped=self.dropped,
        )
        self._accepted, self._first_tokens, self._finished = [], [], []
        return batch

    def lost(self, batch: GatewayRecords) -> None:
        """The link did not take a batch."""
        kinds = (batch.accepted, batch.first_tokens, batch.finished, batch.hops)
        self.dropped += sum(len(kind) for kind in kinds)

    def _add(self, kept: list[RecordT], record: RecordT) -> None:
        if len(kept) < self._limit:
            kept.append(record)
        else:
            self.dropped += 1
