"""Plain structs of what happened to requests; gateways ship them, the hub turns them into all else.

Times are `engine.clock` readings. No prompt or output text is ever in a record.
"""

from enum import StrEnum
from typing import Literal

import msgspec

from engine.wire.messages import Timeline


class Outcome(StrEnum):
    """How a request ended, for accounts: exactly one each."""

    REJECTED = "rejected"
    """Refused before it was accepted: bad input, no key, a limit."""
    FINISHED = "finished"
    ABORTED = "aborted"
    """The client went away, or an operator ended it."""
    FAILED = "failed"


class RequestAccepted(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """A request passed validation, authentication and admission: a row of the live table."""

    request_id: str
    trace_id: str
    gateway: str
    gateway_epoch: int
    route: str
    model: str
    key_id: str | None
    stream: bool
    choices: int
    prompt_tokens: int
    max_tokens: int
    received_ns: int
    accepted_ns: int
    engine_id: str | None = None


class RequestFirstToken(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """The first token of a request left for the client."""

    request_id: str
    at_ns: int
    engine_id: str
    engine_epoch: int


class ChoiceRecord(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """One engine request of a request (`n` > 1 or several prompts make more than one)."""

    engine_request_id: str
    index: int
    engine_id: str
    engine_epoch: int
    send_span_id: str
    """Span id in the header of its `AddRequest`: the parent of what the engine did."""
    finish_reason: str | None
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    timeline: Timeline | None
    """None when the engine died before it could tell."""


class RequestRecord(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """All that is kept of one request, sent once at its end.

    The stages are boundaries in time order; the phases between them tile the request. A stage that
    was not reached is None.
    """

    request_id: str
    trace_id: str
    span_id: str
    """The server span's id."""
    parent_span_id: str | None
    """From the caller's `traceparent`."""
    flags: int
    gateway: str
    gateway_epoch: int
    method: str
    route: str
    """Template of the route; a closed set."""
    operation: str
    """`chat`, `text_completion`, `tokenize`, ... (gen_ai.operation.name)."""
    status: int
    outcome: Outcome
    error_code: str | None
    error_detail: str | None
    model: str | None
    """None or one of the served names: never what an unknown client asked for."""
    key_id: str | None
    stream: bool
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    max_tokens: int | None
    temperature: float | None
    top_p: float | None
    received_ns: int
    authenticated_ns: int | None
    admitted_ns: int | None
    tokenized_ns: int | None
    chat_span_id: str | None
    """Parent of the engine's spans, started at `tokenized_ns`."""
    held_ns: int
    """Time spent waiting for an engine to start or wake, inside the dispatch phase."""
    first_frame_ns: int | None
    last_token_ns: int | None
    """The last output of the engine was taken from its collector."""
    ended_ns: int
    """The last ASGI `send` returned."""
    detokenize_ns: int
    frames: int
    requeues: int
    choices: tuple[ChoiceRecord, ...]
    client_request_id: str | None = None
    """The caller's own `x-request-id`, when it is a sane one: a label, never our id."""
    base_model: str | None = None
    """Served name that metrics count it under: `model`, or the base of that adapter."""
    held_for: str | None = None
    """What `held_ns` was spent on: `asleep`, `waking`, `starting`, `backoff`, `adapter`;
    `unclear`: its engine took nothing, and was there again before it was known why."""
    send_blocked_ns: int = 0
    """Spent in ASGI `send`s of the answer: a client that does not read holds them up."""
    collected_ns: int = 0
    """Between an output's arrival in the gateway and its request taking it, summed up."""
    max_collected_ns: int = 0
    reply_transit_ns: int = 0
    """Between the engine's send of an output and its arrival in the gateway, summed up."""
    gateway_busy_ns: int = 0
    """The gateway's own loop lag while the request ran: how late its timers fired, summed up."""
    outputs: int = 0
    """Outputs taken from collectors."""
    input_content: str | None = None
    """Only when content is recorded and the key allows it: JSON of the messages or the prompt."""
    output_content: str | None = None
    slo_ttft_ok: bool | None = None
    """Whether the promise on the first token was kept; None: not judged (rejected, aborted)."""
    slo_tpot_ok: bool | None = None


class CounterSample(msgspec.Struct, frozen=True, array_like=True):
    """A cumulative count, or a level. Names are those of `appliance.telemetry.names`."""

    name: str
    labels: tuple[tuple[str, str], ...]
    value: float


class HistogramSample(msgspec.Struct, frozen=True, array_like=True):
    """A cumulative histogram: `counts[i]` observations fell in bucket i, the last is +Inf."""

    name: str
    labels: tuple[tuple[str, str], ...]
    counts: tuple[int, ...]
    sum: float


class AccountsSnapshot(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """All accounts of one process, whole and idempotent, taken in one turn of its loop."""

    process: str
    epoch: int
    taken_ns: int
    counters: tuple[CounterSample, ...]
    gauges: tuple[CounterSample, ...]
    histograms: tuple[HistogramSample, ...]


class LiveTokens(msgspec.Struct, frozen=True, array_like=True):
    """How far a live request is."""

    request_id: str
    completion_tokens: int
    state: Literal["held", "queued", "prefill", "decode"]
