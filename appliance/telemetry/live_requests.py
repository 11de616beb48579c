"""The table of requests: those that run, and the last that ended."""

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain, islice

from appliance.supervisor.admin.schemas import RequestRow
from appliance.telemetry.records import (
    LiveTokens,
    RequestAccepted,
    RequestFirstToken,
    RequestRecord,
)
from appliance.telemetry.request_facts import NS_PER_S, ended_row, milliseconds
from appliance.telemetry.request_ids import request_key
from appliance.telemetry.wall_clock import WallClock

MAX_ENDED = 1000
MAX_LIVE = 20_000


@dataclass(slots=True)
class LiveRequest:
    """A request between its acceptance and its end."""

    accepted: RequestAccepted
    state: str = "queued"
    engine_id: str | None = None
    first_token_ns: int | None = None
    tokens: int = 0


class LiveRequests:
    """Follows requests from what gateways tell. Rows are made when somebody looks."""

    def __init__(self, clock: WallClock) -> None:
        self._clock = clock
        self._live: dict[str, LiveRequest] = {}
        self._traces: Counter[str] = Counter()
        self._ended: deque[RequestRow] = deque(maxlen=MAX_ENDED)
        self._changed: set[str] = set()
        self.dropped = 0
        """Requests that found no place in the table while they ran."""

    def __len__(self) -> int:
        return len(self._live)

    @property
    def num_held(self) -> int:
        """How many wait in a gateway for an engine."""
        return sum(live.state == "held" for live in self._live.values())

    def accept(self, accepted: RequestAccepted) -> None:
        """A gateway accepted a request."""
        key = request_key(accepted.request_id)
        if key in self._live:
            return
        if len(self._live) >= MAX_LIVE:
            self.dropped += 1
            return
        self._live[key] = LiveRequest(accepted, engine_id=accepted.engine_id)
        self._traces[accepted.trace_id] += 1
        self._changed.add(key)

    def first_token(self, first: RequestFirstToken) -> None:
        """A request's first token left."""
        key = request_key(first.request_id)
        live = self._live.get(key)
        if live is not None:
            live.first_token_ns, live.engine_id, live.state = first.at_ns, first.engine_id, "decode"
            live.tokens = max(1, live.tokens)
            self._changed.add(key)

    def progress(self, tokens: LiveTokens) -> None:
        """A gateway tells how far a request is."""
        key = request_key(tokens.request_id)
        live = self._live.get(key)
        if live is not None and (live.tokens, live.state) != (
            tokens.completion_tokens,
            tokens.state,
        ):
            live.tokens, live.state = tokens.completion_tokens, tokens.state
            self._changed.add(key)

    def end(self, record: RequestRecord) -> RequestRow:
        """A request ended; returns its last row."""
        self._forget(request_key(record.request_id))
        row = ended_row(record, self._clock)
        self._ended.appendleft(row)
        return row

    def of_gateway(self, name: str, epoch: int | None = None) -> list[LiveRequest]:
        """Return the live requests of a gateway, of one epoch or of all."""
        return [
            live
            for live in self._live.values()
            if live.accepted.gateway == name and epoch in (None, live.accepted.gateway_epoch)
        ]

    def forget_lost(
        self, gateway: str, running: Iterable[LiveTokens], accepted_before_ns: int
    ) -> list[RequestRow]:
        """Forget what a gateway does not count among its running requests, and accepted before.

        The records of these ends were lost, or are not made. Returns the rows, ended.
        """
        known = {request_key(tokens.request_id) for tokens in running}
        over = [
            live
            for live in self.of_gateway(gateway)
            if live.accepted.accepted_ns < accepted_before_ns
            and request_key(live.accepted.request_id) not in known
        ]
        rows: list[RequestRow] = []
        for live in over:
            row = self._row(live, accepted_before_ns)
            self._forget(request_key(live.accepted.request_id))
            rows.append(row.model_copy(update={"state": "finished", "ended_at": self._clock.now()}))
        return rows

    def find(self, request_id: str) -> LiveRequest | None:
        """Return a live request by any form of its id."""
        return self._live.get(request_key(request_id))

    def is_live(self, trace_id: str) -> bool:
        """Whether a request of this trace still runs."""
        return trace_id in self._traces

    def take_changed(self, now_ns: int) -> list[RequestRow]:
        """Return the rows that changed since the last call."""
        changed, self._changed = self._changed, set()
        rows = ((key, self._live.get(key)) for key in changed)
        return [self._row(live, now_ns) for _, live in rows if live is not None]

    def rows(self, state: str | None, limit: int, now_ns: int) -> list[RequestRow]:
        """Return rows, live ones first, each part newest first; `state` as in `TelemetryView`."""
        newest_first = reversed(list(self._live.values()))
        live = (self._row(one, now_ns) for one in newest_first)
        match state:
            case None:
                rows = chain(live, self._ended)
            case "live":
                rows = live
            case "ended":
                rows = iter(self._ended)
            case _:
                rows = (row for row in chain(live, self._ended) if row.state == state)
        return list(islice(rows, max(0, limit)))

    def row(self, request_id: str, now_ns: int) -> RequestRow | None:
        """Return one row by any form of the request's id."""
        key = request_key(request_id)
        live = self._live.get(key)
        if live is not None:
            return self._row(live, now_ns)
        return next((row for row in self._ended if request_key(row.id) == key), None)

    def _forget(self, key: str) -> None:
        live = self._live.pop(key, None)
        self._changed.discard(key)
        if live is None:
            return
        trace_id = live.accepted.trace_id
        self._traces[trace_id] -= 1
        if self._traces[trace_id] <= 0:
            del self._traces[trace_id]

    def _row(self, live: LiveRequest, now_ns: int) -> RequestRow:
        accepted = live.accepted
        first_ns = live.first_token_ns
        decoding_s = 0.0 if first_ns is None else (now_ns - first_ns) / NS_PER_S
        per_s = round((live.tokens - 1) / decoding_s, 2) if decoding_s and live.tokens > 1 else None
        return RequestRow.model_validate(
            {
                "id": accepted.request_id,
                "trace_id": accepted.trace_id,
                "state": live.state,
                "route": accepted.route,
                "model": accepted.model,
                "key_id": accepted.key_id,
                "engine": live.engine_id,
                "gateway": accepted.gateway,
                "stream": accepted.stream,
                "received_at": self._clock.at(accepted.received_ns),
                "age_s": max(0.0, (now_ns - accepted.received_ns) / NS_PER_S),
                "prompt_tokens": accepted.prompt_tokens,
                "completion_tokens": live.tokens,
                "max_tokens": accepted.max_tokens,
                "ttft_ms": None
                if first_ns is None
                else milliseconds(first_ns - accepted.received_ns),
                "tokens_per_s": per_s,
            }
        )
