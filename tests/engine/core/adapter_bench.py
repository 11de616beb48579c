"""An `AdapterStore` of a small model without an engine around it."""

import threading
from pathlib import Path

import torch

from engine.checkpoint.checkpoint import open_checkpoint
from engine.config import EngineConfig
from engine.core.adapter_content import Lease
from engine.core.adapter_layout import linear_parts
from engine.core.adapter_reader import AdapterReader
from engine.core.adapters import AdapterStore, LoadingAdapter
from engine.kernels.backend import KernelBackend
from engine.kernels.reference.backend import ReferenceBackend
from engine.layers.lora import TensorAdapters
from engine.models.registry import family_of
from engine.wire.calls import AdapterState, LoadAdapter

PATIENCE_S = 30.0


def make_reader(model_dir: Path, max_rank: int = 128) -> AdapterReader:
    model = open_checkpoint(model_dir).config
    return AdapterReader(linear_parts(model, family_of(model).parameters(model)), max_rank)


class AdapterBench:
    """See the module. `turn` is what the engine's loop does when it is woken."""

    def __init__(
        self, model_dir: Path, kernels: KernelBackend | None = None, **options: object
    ) -> None:
        fields: dict = {"engine_id": "e0", "epoch": 1, "model_name": "m", "clients": ()}
        self.config = EngineConfig(model=str(model_dir), **(fields | options))
        self.now_ns = 0
        self._ready = threading.Event()
        self.store = AdapterStore(
            self.config,
            make_reader(model_dir, self.config.max_lora_rank),
            TensorAdapters(kernels or ReferenceBackend(), torch.device("cpu")),
            torch.device("cpu"),
            self._ready.set,
            clock=self.clock,
        )

    def clock(self) -> int:
        self.now_ns += 1000
        return self.now_ns

    def turn(self) -> None:
        """Wait until the reading thread has something, then take it in."""
        assert self._ready.wait(PATIENCE_S), "the reading thread says nothing"
        self._ready.clear()
        self.store.advance()

    def begin(self, name: str, path: Path, *, pinned: bool = False) -> LoadingAdapter:
        return self.store.load(LoadAdapter(name=name, path=str(path), pinned=pinned))

    def finish(self, loading: LoadingAdapter) -> AdapterState | str:
        """What a load comes to: the adapter's state, or why it was refused."""
        while loading.state is None and loading.refusal is None:
            self.turn()
        return loading.state or str(loading.refusal)

    def load(self, name: str, path: Path, *, pinned: bool = False) -> AdapterState:
        state = self.finish(self.begin(name, path, pinned=pinned))
        assert isinstance(state, AdapterState), state
        return state

    def refusal(self, name: str, path: Path, *, pinned: bool = False) -> str:
        text = self.finish(self.begin(name, path, pinned=pinned))
        assert isinstance(text, str), "it was loaded"
        return text

    def lease(self, name: str) -> Lease:
        lease = self.store.lease(name)
        assert lease is not None, "not loaded"
        return lease

    def ready_lease(self, name: str) -> Lease:
        lease = self.lease(name)
        while not lease.is_ready and lease.fault is None:
            self.turn()
        return lease

    def state(self, name: str) -> AdapterState:
        (found,) = [state for state in self.store.list().adapters if state.name == name]
        return found

    def resident(self) -> set[str]:
        return {state.name for state in self.store.list().adapters if state.resident}

    def active(self) -> set[str]:
        return {state.name for state in self.store.list().adapters if state.active}
