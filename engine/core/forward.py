"""One step on the device: pack, run the model, sample, keep the drafts that were right."""

from collections.abc import Sequence

import torch
from torch import Tensor

from engine.clock import now_ns
from engine.core.batch import OnStage, Sampled, SampleRow, ScheduledRequest, StepResult, no_stage
from engine.core.sampler import Sampler, prompt_logprobs
from engine.core.step_input import pack, prompt_rows, sample_rows
from engine.kernels.model import LoadedModel
from engine.kernels.sampling import SamplingKernels
from engine.layers.linear import StepAdapters
from engine.wire.flight import BUILT, FORWARD, SAMPLED


@torch.inference_mode()
def run_step(
    model: LoadedModel,
    sampler: Sampler,
    batch: Sequence[ScheduledRequest],
    adapters: StepAdapters | None = None,
    on_stage: OnStage = no_stage,
) -> StepResult:
    """Compute requests; see `ModelRunner.execute`.

    Raises:
        StepValueError: a model that looks for it found a value that is out of bounds.
    """
    packed = pack(batch)
    result = StepResult(built_ns=now_ns(), rows=model.padded_rows(len(packed.token_ids)))
    on_stage(BUILT, result.built_ns)
    logits = model.forward(packed, adapters)
    result.forwarded_ns = now_ns()
    on_stage(FORWARD, result.forwarded_ns)
    rows = [row for request in batch for row in sample_rows(request)]
    _score_prompts(logits[len(rows) :], batch, model.sampling, result)
    if rows:
        _keep(sampler.sample(logits[: len(rows)], rows), batch, rows, result)
    on_stage(SAMPLED, now_ns())
    return result


def _score_prompts(
    logits: Tensor,
    batch: Sequence[ScheduledRequest],
    kernels: SamplingKernels,
    result: StepResult,
) -> None:
    start = 0
    for scored in prompt_rows(batch):
        end = start + len(scored.targets)
        result.prompt_logprobs[scored.request_id] = prompt_logprobs(
            logits[start:end], scored.targets, scored.num_best, kernels
        )
        start = end


def _keep(
    sampled: Sequence[Sampled],
    batch: Sequence[ScheduledRequest],
    rows: Sequence[SampleRow],
    result: StepResult,
) -> None:
    assert len(sampled) == len(rows), "one result for each row"
    start = 0
    for request in batch:
        if request.samples:
            end = start + request.num_drafts + 1
            _keep_right(request, sampled[start:end], result)
            start = end


def _keep_right(request: ScheduledRequest, sampled: Sequence[Sampled], result: StepResult) -> None:
    """Keep tokens up to and including the first that differs from its draft.

    The sampler is stateless, so these are the tokens that single steps would have given.
    """
    drafts = request.token_ids[len(request.token_ids) - request.num_drafts :]
    kept: list[Sampled] = []
    for index, one in enumerate(sampled):
        if one.token_id is None:
            break
        kept.append(one)
        if index < len(drafts) and drafts[index] != one.token_id:
            break
    if not kept:
        result.faults[request.request_id] = sampled[0].fault or "no token was sampled"
        return
    result.token_ids[request.request_id] = tuple(
        one.token_id for one in kept if one.token_id is not None
    )
    logprobs = tuple(one.logprobs for one in kept if one.logprobs is not None)
    if logprobs:
        result.logprobs[request.request_id] = logprobs
