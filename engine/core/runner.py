"""The model on its device: loads it, runs steps, gives its memory back and takes it again."""

import logging
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch

from engine.checkpoint.checkpoint import Checkpoint, CheckpointError, open_checkpoint
from engine.config import MAX_THREADS, EngineConfig
from engine.core.adapters import AdapterStore, make_adapter_store
from engine.core.batch import (
    ConfigError,
    DeviceFatalError,
    ModelFacts,
    OnStage,
    Progress,
    ScheduledRequest,
    StepResult,
    no_stage,
)
from engine.core.ceilings import Ceilings, measure_ceilings
from engine.core.forward import run_step
from engine.core.kernel_choice import choose_kernels
from engine.core.kv_cache import CacheSize, plan_cache
from engine.core.memory import resident_bytes, trim
from engine.core.model_source import ModelSource, make_source
from engine.core.sampler import Sampler
from engine.core.step_costs import costs_of
from engine.core.step_input import Bounds, problem_of
from engine.kernels.model import LoadedModel, StepValueError
from engine.layers.linear import StepAdapters
from engine.models.blocks import linear_parameters
from engine.models.registry import family_of
from engine.wire.messages import SamplingParams

if TYPE_CHECKING:
    from tokenizers import Tokenizer

logger = logging.getLogger(__name__)

_WARM_UP_ROWS = (1, 16, 64)
"""Prompt lengths run once, so that the first request meets no first-time costs."""


class TorchRunner:
    """Runs one model with torch; implements `engine.core.batch.ModelRunner`.

    Args:
        config: Which model, on which device, in which dtype, with how much KV cache.
    """

    def __init__(self, config: EngineConfig) -> None:
        self.on_stage: OnStage = no_stage
        self._config = config
        self._device = torch.device("cpu")
        self._secret = secrets.token_bytes(16)
        """Of seeds: the same after a sleep."""
        self._sampler = Sampler(self._secret)
        self._checkpoint: Checkpoint | None = None
        self._source: ModelSource | None = None
        self._cache_size: CacheSize | None = None
        self._bounds = Bounds(0, 0, 0, 1)
        self._loaded: LoadedModel | None = None
        self._adapters: AdapterStore | None = None
        self._ceilings: Ceilings | None = None

    def load(self, progress: Progress) -> ModelFacts:
        """Read the weights, allocate the KV cache, warm up.

        Raises:
            ConfigError: the model, device or dtype cannot be used, or the KV cache does not fit.
        """
        _set_threads(self._config.num_threads)
        self._device = _device(self._config.device)
        checkpoint = self._open()
        choice = choose_kernels(self._config, self._device, checkpoint.config.dtype)
        if choice.dtype.reason:
            logger.warning("weights are kept in %s: %s", choice.dtype.name, choice.dtype.reason)
        source = make_source(self._config, choice, checkpoint, self._device)
        self._source = source
        size = plan_cache(self._config, checkpoint.config, source.block_bytes, self._device)
        self._cache_size = size
        self._bounds = Bounds(
            vocab_size=checkpoint.config.vocab_size,
            max_model_len=size.max_model_len,
            num_blocks=size.num_blocks,
            block_size=size.block_size,
            num_window_blocks=size.num_window_blocks,
            sliding_window=size.sliding_window,
        )
        return self._facts(checkpoint, source, self._fill(progress))

    def tokenizer(self) -> "Tokenizer":
        """Build the model's tokenizer."""
        return self._open().tokenizer()

    def adapter_store(self, on_ready: Callable[[], None]) -> AdapterStore | None:
        """Make the store of LoRA adapters; see `ModelRunner.adapter_store`."""
        if self._config.max_loras:
            config = self._open().config
            self._adapters = make_adapter_store(
                self._config,
                config,
                family_of(config).parameters(config),
                self._from().adapter_kernels,
                self._device,
                on_ready,
            )
        return self._adapters

    def execute(self, batch: Sequence[ScheduledRequest]) -> StepResult:
        """Run one step; a request whose values are out of bounds becomes a fault of its own.

        After an error the step may be run again: the same keys and values go to the same slots.

        Raises:
            DeviceFatalError: the device failed.
        """
        if self._alive().checks_values and batch:
            try:
                return self._run(batch)
            except StepValueError as error:
                logger.warning("a step was refused: %s", error)
        return self._run_sound(batch)

    def release(self, level: Literal[1, 2]) -> None:
        """Drop weights, KV cache and adapters; level 2 drops the checkpoint's index too."""
        if self._loaded is not None:
            self._loaded.close()
        self._loaded = None
        self._sampler = Sampler(self._secret)  # the other one holds on to the model's threads
        if self._adapters is not None:
            self._adapters.release_memory()
        if level == 2:  # noqa: PLR2004
            self._checkpoint = None
        trim(self._device)

    def restore(self, progress: Progress) -> None:
        """Load the same weights again and make an empty KV cache of the same size.

        Raises:
            ConfigError: the checkpoint has gone or changed.
        """
        if self._loaded is None:
            self._fill(progress)
            if self._adapters is not None:
                self._adapters.restore()

    def resident_bytes(self) -> int:
        """Return the process's resident set on the CPU, else bytes on the device."""
        return resident_bytes(self._device)

    def _open(self) -> Checkpoint:
        if self._checkpoint is None:
            try:
                self._checkpoint = open_checkpoint(Path(self._config.model))
            except CheckpointError as error:
                raise ConfigError(str(error)) from error
        return self._checkpoint

    def _fill(self, progress: Progress) -> LoadedModel:
        """Load the model and warm up, reporting each phase."""
        source = self._from()
        loaded = source.load(self._open(), self._size(), progress)
        self._loaded = loaded
        self._sampler = Sampler(self._secret, loaded.sampling)
        self._tune(source, progress)
        self._warm_up(progress)
        return loaded

    def _tune(self, source: ModelSource, progress: Progress) -> None:
        """Find out, once, what the kernels must know of this machine, and what it can do."""
        if self._ceilings is not None:
            return
        progress("kernels", 0, 2)
        source.tune(self._open())
        progress("kernels", 1, 2)
        self._ceilings = measure_ceilings(source.choice.dtype.dtype, self._device)
        progress("kernels", 2, 2)

    def _warm_up(self, progress: Progress) -> None:
        """Run prompts of a few lengths, none longer than what a step may have."""
        size = self._size()
        longest = min(size.max_model_len, self._config.max_num_batched_tokens)
        lengths = [length for length in _WARM_UP_ROWS if length <= longest]
        progress("warm_up", 0, len(lengths) + 1)
        for done, length in enumerate(lengths, start=1):
            progress("warm_up", done, len(lengths) + 1)
            self._run([_warm_up_request(length, size)])
        # a cache is the same after every load
        self._alive().clear_blocks(-(-max(lengths) // size.block_size))
        progress("warm_up", len(lengths) + 1, len(lengths) + 1)

    def _run_sound(self, batch: Sequence[ScheduledRequest]) -> StepResult:
        """Run the requests whose values are within bounds; the others become faults."""
        faults: dict[str, str] = {}
        sound: list[ScheduledRequest] = []
        for request in batch:
            problem = problem_of(request, self._bounds)
            if problem:
                faults[request.request_id] = problem
            else:
                sound.append(request)
        result = self._run(sound) if sound else StepResult()
        result.faults |= faults
        return result

    def _run(self, batch: Sequence[ScheduledRequest]) -> StepResult:
        """Compute a batch; what torch raises when the device is lost is made fatal."""
        try:
            adapters = self._step_adapters(batch)
            return run_step(self._alive(), self._sampler, batch, adapters, self.on_stage)
        except torch.AcceleratorError as error:
            raise DeviceFatalError(str(error)) from error

    def _step_adapters(self, batch: Sequence[ScheduledRequest]) -> StepAdapters | None:
        if self._adapters is None:
            return None
        rows: list[tuple[int, int, str | None]] = []
        num_rows = 0
        for request in batch:
            rows.append((num_rows, len(request.token_ids), request.adapter))
            num_rows += len(request.token_ids)
        return self._adapters.for_step(rows, num_rows)

    def _alive(self) -> LoadedModel:
        assert self._loaded is not None, "the runner holds no model"
        return self._loaded

    def _from(self) -> ModelSource:
        assert self._source is not None, "load() was not called"
        return self._source

    def _size(self) -> CacheSize:
        assert self._cache_size is not None, "load() was not called"
        return self._cache_size

    def _facts(
        self, checkpoint: Checkpoint, source: ModelSource, loaded: LoadedModel
    ) -> ModelFacts:
        assert self._ceilings is not None
        config, size, kernels = checkpoint.config, self._size(), loaded.facts
        num_parameters = linear_parameters(config)
        dtype = source.choice.dtype
        return ModelFacts(
            architecture=checkpoint.architecture,
            vocab_size=config.vocab_size,
            max_model_len=size.max_model_len,
            dtype=dtype.name,
            device=str(self._device),
            kernel_backend=kernels.backend,
            weights_bytes=loaded.weights.total,
            kv_cache_bytes=size.total_bytes,
            num_blocks=size.num_blocks,
            eos_token_ids=checkpoint.eos_token_ids,
            dtype_reason=dtype.reason,
            sliding_window=size.sliding_window,
            num_window_blocks=size.num_window_blocks,
            costs=costs_of(
                config,
                num_parameters,
                loaded.weights.step,
                source.block_bytes // self._config.block_size,
            ),
            num_parameters=num_parameters,
            peak_flops=self._ceilings.flops,
            peak_bytes_per_s=self._ceilings.bytes_per_s,
            num_threads=kernels.num_threads,
            kernel_path=kernels.path,
            kernel_reason=kernels.reason,
            quantization=kernels.quantization,
            quantization_reason=kernels.quantization_reason,
            kv_cache_dtype=kernels.kv_cache_dtype,
            weight_cache=kernels.weight_cache,
        )


def _set_threads(count: int | None) -> None:
    if count is None:
        return
    if not 1 <= count <= MAX_THREADS:
        raise ConfigError(f"num_threads must be from 1 to {MAX_THREADS}, got {count}")
    torch.set_num_threads(count)


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"device {name!r} is unknown") from error
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"device {name!r} is not supported; supported: cpu, cuda, cuda:0, ...")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(f"device {name!r} is not there: {torch.cuda.device_count()} GPUs found")
    return device


def _warm_up_request(length: int, size: CacheSize) -> ScheduledRequest:
    blocks = range(-(-length // size.block_size))
    token_ids = [0] * length
    return ScheduledRequest(
        request_id="warm-up",
        token_ids=token_ids,
        start_position=0,
        block_table=blocks,
        samples=True,
        sampling=SamplingParams(max_tokens=1, temperature=0.0),
        num_output_tokens=0,
        history=token_ids,
        num_prompt_tokens=length,
        window_table=blocks if size.sliding_window else (),
    )
