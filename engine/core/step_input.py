"""Packs scheduled requests into one batch, and finds the requests that cannot be computed."""

from collections.abc import Sequence
from dataclasses import dataclass

from engine.core.batch import SampleRow, ScheduledRequest
from engine.kernels.backend import Span
from engine.kernels.model import PackedStep


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a request's values must stay below."""

    vocab_size: int
    max_model_len: int
    num_blocks: int
    block_size: int
    num_window_blocks: int = 0
    sliding_window: int | None = None


@dataclass(frozen=True, slots=True)
class PromptRows:
    """Rows of one request whose logits score the prompt tokens that follow them."""

    request_id: str
    first_row: int
    """In the packed batch."""
    targets: Sequence[int]
    """The tokens that follow, one for each row."""
    num_best: int


def problem_of(request: ScheduledRequest, bounds: Bounds) -> str | None:
    """Return why the request cannot be computed, or None."""
    count = len(request.token_ids)
    end = request.start_position + count
    if count == 0 or request.start_position < 0:
        return "there are no tokens to compute"
    if not 0 <= request.num_drafts < count:
        return "there are more drafts than tokens"
    if end > bounds.max_model_len:
        return f"{end} tokens do not fit into {bounds.max_model_len}"
    return _ids_problem(request, bounds, end) or _window_problem(request, bounds, end)


def _ids_problem(request: ScheduledRequest, bounds: Bounds, end: int) -> str | None:
    if _outside(request.token_ids, bounds.vocab_size):
        return f"a token id is outside the vocabulary of {bounds.vocab_size}"
    if len(request.block_table) * bounds.block_size < end:
        return f"{len(request.block_table)} blocks do not hold {end} tokens"
    if _outside(request.block_table, bounds.num_blocks):
        return f"a block is outside the cache of {bounds.num_blocks}"
    return None


def _window_problem(request: ScheduledRequest, bounds: Bounds, end: int) -> str | None:
    if bounds.sliding_window is None:
        return None
    first = max(0, request.start_position + 1 - bounds.sliding_window) // bounds.block_size
    needed = request.window_table[first : -(-end // bounds.block_size)]
    if len(needed) * bounds.block_size < end - first * bounds.block_size:
        return f"the window's blocks do not hold {end} tokens"
    if _outside(needed, bounds.num_window_blocks):
        return f"a block is outside the window's cache of {bounds.num_window_blocks}"
    return None


def _outside(values: Sequence[int], limit: int) -> bool:
    return bool(values) and (min(values) < 0 or max(values) >= limit)


def sample_rows(request: ScheduledRequest) -> list[SampleRow]:
    """Return what to sample for a request: after its last known token, and after each draft."""
    if not request.samples:
        return []
    drafts = list(request.token_ids[len(request.token_ids) - request.num_drafts :])
    return [
        SampleRow(
            request_id=request.request_id,
            sampling=request.sampling,
            position=request.num_output_tokens + index,
            num_prompt_tokens=request.num_prompt_tokens,
            history=[*request.history, *drafts[:index]] if index else request.history,
            banned_token_ids=request.banned_token_ids
            if request.num_output_tokens + index < request.sampling.min_tokens
            else (),
            grammar=request.grammar,
        )
        for index in range(len(drafts) + 1)
    ]


def prompt_rows(batch: Sequence[ScheduledRequest]) -> list[PromptRows]:
    """Return the rows of a batch that score prompt tokens."""
    found: list[PromptRows] = []
    row = 0
    for request in batch:
        if request.prompt_logprobs is not None:
            first = request.start_position + 1
            end = min(first + len(request.token_ids), request.num_prompt_tokens)
            targets = request.history[first:end]
            if targets:
                found.append(PromptRows(request.request_id, row, targets, request.prompt_logprobs))
        row += len(request.token_ids)
    return found


def pack(batch: Sequence[ScheduledRequest]) -> PackedStep:
    """Lay the requests' tokens out one after the other.

    The rows whose logits are wanted are those of `sample_rows` of each request, in order, and
    then those of `prompt_rows`.
    """
    token_ids: list[int] = []
    spans: list[Span] = []
    wanted: list[int] = []
    for request in batch:
        first = len(token_ids)
        token_ids.extend(request.token_ids)
        end = len(token_ids)
        spans.append(
            Span(
                first,
                end - first,
                request.start_position,
                request.block_table,
                request.window_table,
            )
        )
        if request.samples:
            wanted.extend(range(end - 1 - request.num_drafts, end))
    for rows in prompt_rows(batch):
        wanted.extend(range(rows.first_row, rows.first_row + len(rows.targets)))
    return PackedStep(token_ids, spans, wanted)
