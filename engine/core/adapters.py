"""The LoRA adapters of one engine: names, contents, memory, slots, and the calls that change them.

A name stands for a content; a content's identity is a hash, so other weights under the same name
are another adapter. Contents in host memory are ready for the kernels (float32, with the scale in
them); at most `max_loras` of them are in slots, from which steps use them.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from engine.checkpoint.model_config import ModelConfig
from engine.clock import now_ns
from engine.config import EngineConfig
from engine.core.adapter_config import AdapterError
from engine.core.adapter_content import AdapterContent, AdapterName, Lease
from engine.core.adapter_jobs import AdapterJobs, ReadJob
from engine.core.adapter_layout import linear_parts
from engine.core.adapter_memory import AdapterMemory
from engine.core.adapter_reader import AdapterReader, ReadAdapter
from engine.core.adapter_slots import AdapterSlots
from engine.core.batch import AdapterCounts, AdapterRefusedError
from engine.layers.linear import StepAdapters
from engine.layers.lora import AdapterKernels, AdapterRows, row_groups
from engine.models.parameters import Parameter
from engine.wire.calls import AdapterList, AdapterState, AdapterUnloaded, LoadAdapter

logger = logging.getLogger(__name__)

MAX_LOADS = 32
"""Loads under way: they are read one after the other."""
MAX_NAME_LENGTH = 256


class LoadingAdapter:
    """A load under way; implements `engine.core.batch.AdapterLoading`."""

    def __init__(self, call: LoadAdapter, job: ReadJob) -> None:
        self.call = call
        self.job = job
        self.state: AdapterState | None = None
        self.refusal: str | None = None
        self.is_abandoned = False

    def abandon(self) -> None:
        """Nobody waits for it any longer: it will change nothing."""
        self.is_abandoned = True
        self.job.cancel()


class AdapterStore:
    """Implements `engine.core.batch.AdapterStore`; `make_adapter_store` makes one.

    Args:
        config: How many adapters there may be.
        reader: Reads adapters of this model.
        kernels: Prepare adapters and what steps need of them.
        device: Where steps run.
        on_ready: Called from the reading thread when `advance` has something to take in.
        clock: Nanoseconds.
    """

    def __init__(
        self,
        config: EngineConfig,
        reader: AdapterReader,
        kernels: AdapterKernels,
        device: torch.device,
        on_ready: Callable[[], None],
        clock: Callable[[], int] = now_ns,
    ) -> None:
        self._reader = reader
        self._kernels = kernels
        self._device = device
        self._clock = clock
        self._names: dict[str, AdapterName] = {}
        self._loading: list[LoadingAdapter] = []
        self._jobs = AdapterJobs(self._read, on_ready)
        self._slots = AdapterSlots(config.max_loras, device)
        num_places = max(config.max_cpu_loras, config.max_loras)
        self._memory = AdapterMemory(num_places, self._slots, self._jobs, clock)

    # ------------------------------------------------------------ requests and steps

    @property
    def counts(self) -> AdapterCounts:
        """How many names there are, and how many contents are in slots."""
        return AdapterCounts(loaded=len(self._names), active=len(self._slots))

    @property
    def num_bytes(self) -> int:
        """Return the memory that adapters take, on the host and on the device."""
        return self._memory.num_bytes + self._slots.num_bytes

    def lease(self, name: str) -> Lease | None:
        """Take hold of what is loaded under a name; None when nothing is.

        What has left memory is read again, in the background: the lease becomes ready, or a fault.
        """
        named = self._names.get(name)
        if named is None:
            return None
        named.used_ns = self._clock()
        lease = Lease(named, self._memory.settle)
        self._memory.touch(named.content)
        self._memory.want(named.content)
        return lease

    def for_step(
        self, row_hashes: Sequence[tuple[int, int, str | None]], num_rows: int
    ) -> StepAdapters | None:
        """Return what adds the adapters of a step; None when no row uses one.

        Args:
            row_hashes: `(first row, number of rows, content hash or None)` of each request, in
                ascending order. Whoever uses an adapter holds a lease that is ready.
            num_rows: Of all requests together.

        Raises:
            LookupError: an adapter is not in memory, or there are more of them than slots.
        """
        assert all(first + count <= num_rows for first, count, _ in row_hashes)
        rows = row_groups(row_hashes, self._device)
        if not rows:
            return None
        updates = self._slots.bring([self._content(content_hash) for content_hash in rows])
        groups = [AdapterRows(*group) for group in zip(rows.values(), updates, strict=True)]
        return self._kernels.step(groups)

    def _read(self, path: Path, should_stop: Callable[[], bool]) -> ReadAdapter:
        """Read and prepare an adapter, in the reading thread."""
        adapter = self._reader.read(path, should_stop)
        return replace(adapter, updates=self._kernels.prepare(adapter.updates))

    def _content(self, content_hash: str) -> AdapterContent:
        content = self._memory.contents.get(content_hash)
        if content is None:
            raise LookupError(f"adapter {content_hash[:12]} is not loaded")
        return content

    # ------------------------------------------------------------ calls

    def load(self, call: LoadAdapter) -> LoadingAdapter:
        """Begin to read an adapter; `advance` finishes it.

        Raises:
            AdapterRefusedError: it cannot even begin.
        """
        if not 0 < len(call.name) <= MAX_NAME_LENGTH:
            raise AdapterRefusedError("invalid", "the name must have 1 to 256 characters")
        if len(self._loading) >= MAX_LOADS:
            raise AdapterRefusedError("busy", f"{MAX_LOADS} adapters are being loaded")
        if call.pinned:
            self._refuse_another_pin(self._names.get(call.name))
        loading = LoadingAdapter(call, self._jobs.start(Path(call.path).absolute()))
        self._loading.append(loading)
        return loading

    def unload(self, name: str) -> AdapterUnloaded:
        """Take a name away; its content goes with the last request that holds it.

        Raises:
            AdapterRefusedError: nothing is loaded under it, or it is being loaded.
        """
        if any(loading.call.name == name for loading in self._loading):
            raise AdapterRefusedError("busy", f"adapter {name!r} is being loaded")
        named = self._named(name)
        running = named.running_requests
        del self._names[name]
        self._detach(named)
        logger.info("adapter %s unloaded; requests that still use it: %d", name, running)
        return AdapterUnloaded(name=name, running_requests=running)

    def pin(self, name: str, *, pinned: bool) -> AdapterState:
        """Keep an adapter in memory and in its slot, or stop doing so.

        Raises:
            AdapterRefusedError: nothing is loaded under the name, or every slot has a pinned one.
        """
        named = self._named(name)
        if pinned:
            self._refuse_another_pin(named)
            self._pin(named)
        else:
            named.content.pinned_names.discard(name)
            self._memory.advance()  # what waits for room may have its place
        return self._state(named)

    def list(self) -> AdapterList:
        """Report every adapter, by name."""
        return AdapterList(
            adapters=tuple(self._state(self._names[name]) for name in sorted(self._names)),
            max_loras=self._slots.num_slots,
            max_cpu_loras=self._memory.num_places,
        )

    def advance(self) -> None:
        """Take in what the reading thread has finished."""
        under_way: list[LoadingAdapter] = []
        for loading in self._loading:
            if not loading.job.is_done:
                under_way.append(loading)
            elif not loading.is_abandoned:
                self._finish(loading)
        self._loading = under_way
        self._memory.advance()

    # ------------------------------------------------------------ sleep

    def release_memory(self) -> None:
        """Give the memory of all adapters back. Names stay; no request may hold one."""
        self._memory.release_all()

    def restore(self) -> None:
        """Undo `release_memory`: pinned adapters are read at once, others when asked for."""
        self._memory.restore()

    def close(self) -> None:
        """End the reading thread."""
        for loading in self._loading:
            loading.abandon()
        self._jobs.close()

    # ------------------------------------------------------------ names

    def _finish(self, loading: LoadingAdapter) -> None:
        try:
            loading.state = self._take_in(loading.call, loading.job)
        except AdapterError as error:
            loading.refusal = str(error)
        except Exception as error:
            logger.exception("adapter %s could not be taken in", loading.call.name)
            loading.refusal = f"it could not be taken in: {error}"

    def _take_in(self, call: LoadAdapter, job: ReadJob) -> AdapterState:
        """Let a name stand for what has been read.

        Raises:
            AdapterError: it could not be read, or has no place.
        """
        if job.adapter is None:
            raise AdapterError(job.error or "it could not be read")
        old = self._names.get(call.name)
        if call.pinned and not self._may_pin(old):
            raise AdapterError(self._pins_full)
        content = self._memory.put(job.adapter, job.path, old)
        named = old
        if old is None or old.content is not content:
            named = AdapterName(call.name, content, self._clock())
            content.names.add(call.name)
            self._names[call.name] = named
        assert named is not None
        if call.pinned or (old is not None and old.is_pinned):
            self._pin(named)
        if old is not None and old is not named:
            self._detach(old)
        logger.info("adapter %s loaded: rank %d, %s", call.name, content.rank, content.path)
        return self._state(named)

    def _detach(self, named: AdapterName) -> None:
        named.content.pinned_names.discard(named.name)
        named.content.names.discard(named.name)
        self._memory.settle(named.content)

    def _pin(self, named: AdapterName) -> None:
        content = named.content
        content.pinned_names.add(named.name)
        if content.updates is None:
            self._memory.want(content)
        else:
            self._slots.bring([content])

    @property
    def _pins_full(self) -> str:
        return f"all {self._slots.num_slots} slots have pinned adapters"

    def _may_pin(self, named: AdapterName | None) -> bool:
        pinned = {n.content.content_hash for n in self._names.values() if n.content.pinned_names}
        if named is not None:
            pinned.discard(named.content.content_hash)
        return len(pinned) < self._slots.num_slots

    def _refuse_another_pin(self, named: AdapterName | None) -> None:
        if not self._may_pin(named):
            raise AdapterRefusedError("invalid", self._pins_full)

    def _named(self, name: str) -> AdapterName:
        named = self._names.get(name)
        if named is None:
            raise AdapterRefusedError("invalid", f"no adapter is loaded under the name {name!r}")
        return named

    def _state(self, named: AdapterName) -> AdapterState:
        content = named.content
        return AdapterState(
            name=named.name,
            content_hash=content.content_hash,
            path=str(content.path),
            rank=content.rank,
            num_bytes=content.num_bytes,
            targets=content.targets,
            pinned=named.is_pinned,
            active=content.content_hash in self._slots,
            running_requests=named.running_requests,
            loaded_ns=named.loaded_ns,
            used_ns=named.used_ns,
            resident=content.updates is not None,
        )


def make_adapter_store(
    config: EngineConfig,
    model: ModelConfig,
    parameters: Sequence[Parameter],
    kernels: AdapterKernels,
    device: torch.device,
    on_ready: Callable[[], None],
) -> AdapterStore:
    """Make the store of a model's adapters; for the arguments see `AdapterStore`."""
    reader = AdapterReader(linear_parts(model, parameters), config.max_lora_rank, kernels)
    return AdapterStore(config, reader, kernels, device, on_ready)
