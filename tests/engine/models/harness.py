"""Runs a model step by step without a scheduler."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path

import msgspec
import torch
from torch import Tensor

from engine.checkpoint.checkpoint import open_checkpoint
from engine.checkpoint.model_config import ModelConfig
from engine.config import EngineConfig
from engine.core.batch import ScheduledRequest
from engine.core.kernel_choice import choose_kernels
from engine.core.kv_cache import allocate_cache, plain_block_bytes, plan_cache
from engine.core.model_source import make_source
from engine.core.step_input import pack
from engine.core.tensor_model import TensorModel, TensorParts
from engine.core.weights import WeightLoader
from engine.kernels.model import KernelFacts, LoadedModel, WeightsSize
from engine.kernels.reference.backend import ReferenceBackend
from engine.layers.linear import StepAdapters
from engine.models.blocks import EMBEDDING
from engine.models.decoder import Decoder
from engine.models.registry import family_of
from engine.wire.messages import SamplingParams

GREEDY = SamplingParams(max_tokens=64, temperature=0.0)
FACTS = KernelFacts(
    backend="reference",
    path="torch",
    reason="a test",
    quantization="none",
    quantization_reason="a test",
    kv_cache_dtype="float32",
    num_threads=1,
)


def engine_config(path: Path, **changes: object) -> EngineConfig:
    fields: dict = {"engine_id": "e0", "epoch": 1, "model_name": "m", "clients": ()}
    return EngineConfig(model=str(path), **(fields | changes))


def make_runner(path: Path, **changes: object):
    from engine.core.runner import TorchRunner

    runner = TorchRunner(engine_config(path, **changes))
    runner.load(lambda _phase, _done, _total: None)
    return runner


def share(
    token_ids: Sequence[int],
    start: int = 0,
    *,
    blocks: Sequence[int],
    request_id: str = "r",
    sampling: SamplingParams = GREEDY,
    output_tokens: int = 0,
    banned: Sequence[int] = (),
    window_blocks: Sequence[int] = (),
) -> ScheduledRequest:
    return ScheduledRequest(
        request_id=request_id,
        token_ids=token_ids,
        start_position=start,
        block_table=blocks,
        samples=True,
        sampling=sampling,
        num_output_tokens=output_tokens,
        banned_token_ids=banned,
        window_table=window_blocks,
    )


class Steps:
    """A model whose logits of every row can be looked at."""

    config: ModelConfig
    block_size: int
    model: LoadedModel

    def poison(self, block: int | slice, *, is_sliding: bool | None = None) -> None:
        """Fill a block of all layers, or of the layers of one kind, with what is not a number."""
        raise NotImplementedError

    def step(
        self,
        batch: Sequence[ScheduledRequest],
        adapters: StepAdapters | None = None,
        last: int | None = None,
    ) -> list[Tensor]:
        """Compute one step; returns the logits of every token, request by request.

        With `last`, of so many tokens of each request.
        """
        packed = pack(batch)
        ends = list(accumulate(len(request.token_ids) for request in batch))
        counts = [min(last or end, len(r.token_ids)) for end, r in zip(ends, batch, strict=True)]
        rows = [
            row for end, count in zip(ends, counts, strict=True) for row in range(end - count, end)
        ]
        wanted = replace(packed, sampled_rows=rows)
        return list(self.model.forward(wanted, adapters).clone().split(counts))


class ModelHarness(Steps):
    """A model on the reference kernels.

    `changes` are to the `ModelConfig` of the checkpoint.
    """

    def __init__(
        self,
        path: Path,
        dtype: str = "float32",
        cache_mib: int = 64,
        max_model_len: int | None = None,
        **changes: object,
    ) -> None:
        checkpoint = open_checkpoint(path)
        self.config = msgspec.structs.replace(checkpoint.config, **changes)
        self.block_size = 16
        device, torch_dtype = torch.device("cpu"), getattr(torch, dtype)
        family = family_of(self.config)
        self.kernels = ReferenceBackend()
        self.kernels.prepare(family.shapes(self.config, torch_dtype, device))
        loader = WeightLoader(checkpoint, torch_dtype, device, lambda _done, _total: None)
        weights = loader.load(family.parameters(self.config), self.kernels)
        engine = engine_config(path, kv_cache_bytes=cache_mib << 20, max_model_len=max_model_len)
        block_bytes = plain_block_bytes(engine, self.config, torch_dtype)
        size = plan_cache(engine, self.config, block_bytes, device)
        self.caches = allocate_cache(size, self.config, torch_dtype, device)
        logits_dtype = self.kernels.logits_dtype(torch_dtype, device)
        parts = family.parts(self.config, weights, torch_dtype, logits_dtype)
        decoder = Decoder(
            self.config, weights.tensors[EMBEDDING], parts, self.kernels, size.max_model_len
        )
        self.model = TensorModel(
            TensorParts(decoder, self.caches, self.kernels, device, size.sliding_window),
            FACTS,
            WeightsSize(weights.num_bytes, weights.num_bytes),
        )

    def poison(self, block: int | slice, *, is_sliding: bool | None = None) -> None:
        """Fill a block of all layers, or of the layers of one kind, with what is not a number."""
        for layer, cache in enumerate(self.caches):
            if is_sliding is None or is_sliding == self.config.is_sliding(layer):
                cache.keys[block] = torch.nan
                cache.values[block] = torch.nan


class CpuHarness(Steps):
    """A model on the C++ kernels; `changes` are to the `EngineConfig`."""

    def __init__(self, path: Path, cache_mib: int = 8, **changes: object) -> None:
        checkpoint = open_checkpoint(path)
        self.config = checkpoint.config
        config = engine_config(
            path, **({"kernels": "cpu", "kv_cache_bytes": cache_mib << 20} | changes)
        )
        device = torch.device("cpu")
        choice = choose_kernels(config, device, checkpoint.config.dtype)
        self.source = make_source(config, choice, checkpoint, device)
        self.block_size = config.block_size
        size = plan_cache(config, self.config, self.source.block_bytes, device)
        self.model = self.source.load(checkpoint, size, lambda *_: None)
        self.caches = self.model._cache.layers

    def poison(self, block: int | slice, *, is_sliding: bool | None = None) -> None:
        """Set every bit: no bfloat16 of that, and no scale of an int8, is a number."""
        for layer, cache in enumerate(self.caches):
            if is_sliding is None or is_sliding == self.config.is_sliding(layer):
                cache.view(-1, self.source.block_bytes)[block] = 0xFF


class Text:
    """Feeds one request's tokens to a model piece by piece.

    As a scheduler does, it forgets window blocks that no later token may see; they are poisoned.
    """

    def __init__(self, model: Steps, token_ids: Sequence[int], first_block: int = 1) -> None:
        self._model = model
        self._token_ids = token_ids
        self._done = 0
        self.logits: list[Tensor] = []
        num_blocks = -(-len(token_ids) // model.block_size)
        self.end_block = first_block + num_blocks
        self._blocks = list(range(first_block, self.end_block))
        self._window_blocks = [self.end_block - 1 - at for at in range(num_blocks)]

    @property
    def rest(self) -> int:
        """Number of tokens still to be computed."""
        return len(self._token_ids) - self._done

    def take(self, count: int) -> ScheduledRequest:
        """Return the share of the next tokens."""
        start = self._done
        self._done += min(count, self.rest)
        return share(
            self._token_ids[start : self._done],
            start,
            blocks=self._blocks,
            request_id=str(id(self)),
            window_blocks=self._window(start),
        )

    def _window(self, position: int) -> list[int]:
        window = self._model.config.sliding_window
        if window is None:
            return []
        table = self._window_blocks
        for at in range(max(0, position + 1 - window) // self._model.block_size):
            if table[at] >= 0:
                self._model.poison(table[at], is_sliding=True)
                table[at] = -1
        return list(table)


def run_texts(model: Steps, texts: Sequence[Text], counts: Iterator[int]) -> None:
    """Compute texts to their end, packed together, with so many tokens at a time."""
    while live := [text for text in texts if text.rest]:
        shares = [text.take(next(counts)) for text in live]
        for text, logits in zip(live, model.step(shares), strict=True):
            text.logits.append(logits)


def assert_close(actual: Tensor, wanted: Tensor, relative: float = 1e-4) -> None:
    """Compare logits, relative to the largest."""
    assert (actual - wanted).abs().max() / wanted.abs().max() < relative
