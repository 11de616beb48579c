"""The bodies that have to do with LoRA adapters, and the base of all bodies; see `schemas`."""

from datetime import datetime
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class Schema(BaseModel):
    """Base: ignores fields that a newer server adds."""

    model_config = ConfigDict(extra="ignore", protected_namespaces=())


AdapterState = Literal["loaded", "loading", "missing", "error", "removed"]
"""`missing`: an engine that sleeps, starts or is down gets it when it is ready. `removed`: the last
word of the event stream on an adapter."""


class AdapterOnEngine(Schema):
    """One adapter as one engine has it."""

    engine: str
    state: AdapterState
    active: bool = False
    """In a slot, so that the next step can use it."""
    resident: bool = False
    """In memory; else it is read again when a request asks for it."""
    running_requests: int = 0
    error: str | None = None


class AdapterRow(Schema):
    """One LoRA adapter; `name` is the name of a model for requests."""

    name: str
    state: AdapterState
    """`error` if an engine cannot load it, `loaded` if all that are ready have it."""
    model: str
    """Served name of the model that it changes."""
    path: str
    content_hash: str
    """Hex SHA-256 of configuration and weights; empty while it is first loaded."""
    rank: int | None = None
    num_bytes: int | None = None
    targets: list[str] = Field(default_factory=list)
    pinned: bool = False
    running_requests: int = 0
    loaded_at: datetime | None = None
    last_used_at: datetime | None = None
    engines: list[AdapterOnEngine] = Field(default_factory=list)


class LoadAdapterBody(Schema):
    """`PUT /adapters/{name}`."""

    model_config = ConfigDict(extra="forbid")

    path: str = Field(min_length=1, max_length=4096)
    """Directory of a PEFT adapter, below one of the appliance's `--adapter-root`s."""
    pinned: bool | None = None
    """Left out: as it was, at first false."""
    model: str | None = Field(default=None, max_length=256)
    """Served name of the model that it changes; left out: that of the first engine."""
