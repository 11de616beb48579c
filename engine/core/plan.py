"""What one step computes, and for whom."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from engine.core.batch import ScheduledRequest
from engine.core.endings import banned_token_ids
from engine.core.request import EngineRequest, Produced
from engine.wire.hops import HopLink


@dataclass(slots=True)
class Plan:
    """What one step computes: `requests` and `batch` are parallel."""

    requests: list[EngineRequest] = field(default_factory=list)
    batch: list[ScheduledRequest] = field(default_factory=list)
    ended: list[Produced] = field(default_factory=list)
    """Requests whose deadline has passed, or that can never run."""
    preempted: int = 0
    prefill_tokens: int = 0
    decode_tokens: int = 0
    drafted: int = 0
    cached_tokens: int = 0
    """Prompt tokens that newcomers found in the prefix cache."""

    def add(self, request: EngineRequest, count: int, drafts: Sequence[int] = ()) -> None:
        """Plan the next `count` known tokens of a request and, after its last one, guesses."""
        tokens, start = request.token_ids, request.num_computed_tokens
        num_output = len(tokens) - request.num_prompt_tokens
        samples = start + count == len(tokens)
        is_prefill = count > 1 or not samples or num_output == 0
        if is_prefill:
            self.prefill_tokens += count
        else:
            self.decode_tokens += count
        token_ids = tokens[start : start + count]
        if drafts:
            token_ids.extend(drafts)
            self.drafted += len(drafts)
        sampling = request.sampling
        request.in_step = True
        self.requests.append(request)
        self.batch.append(
            ScheduledRequest(
                request.request_id,
                token_ids,
                start,
                request.block_table,
                samples,
                sampling,
                num_output,
                banned_token_ids(request) if num_output < sampling.min_tokens else (),
                len(drafts),
                tokens,
                request.num_prompt_tokens,
                request.window_table,
                None if request.adapter is None else request.adapter.content_hash,
                request.grammar,
                sampling.prompt_logprobs if num_output == 0 else None,
            )
        )


def is_prefill(share: ScheduledRequest) -> bool:
    """Whether this is a prompt's (or a recomputed request's) chunk rather than a decode."""
    known = len(share.token_ids) - share.num_drafts
    return known > 1 or not share.samples or share.num_output_tokens == 0


def links_without_output(plan: Plan) -> tuple[HopLink, ...]:
    """Return the requests whose chunks give no token yet."""
    shares = zip(plan.requests, plan.batch, strict=True)
    return tuple(request.link for request, share in shares if not share.samples)
