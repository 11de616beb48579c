"""What an engine knows of an adapter: its content, the names that stand for it, and who uses it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from engine.core.adapter_jobs import ReadJob
from engine.layers.lora import LowRankUpdate
from engine.wire.messages import RequestError


@dataclass(slots=True, eq=False)
class AdapterContent:
    """One content. It lives as long as a name stands for it or a request holds it."""

    content_hash: str
    path: Path
    """Where it is read from when it has left memory."""
    rank: int
    targets: tuple[str, ...]
    num_bytes: int
    updates: Mapping[str, Sequence[LowRankUpdate]] | None = None
    """None: not in memory."""
    names: set[str] = field(default_factory=set)
    pinned_names: set[str] = field(default_factory=set)
    leases: "set[Lease]" = field(default_factory=set)
    job: ReadJob | None = None
    """Reads it again."""
    fault: str | None = None
    """Why it could not be read again."""
    fault_at_ns: int = 0

    @property
    def is_needed(self) -> bool:
        """Whether anybody may still ask for it."""
        return bool(self.names or self.leases)

    @property
    def may_leave(self) -> bool:
        """Whether its memory may be given to another adapter."""
        return self.updates is not None and not self.pinned_names and not self.leases


@dataclass(slots=True, eq=False)
class AdapterName:
    """A name and the content that it stands for."""

    name: str
    content: AdapterContent
    loaded_ns: int
    used_ns: int | None = None

    @property
    def is_pinned(self) -> bool:
        """Whether its content may not leave memory."""
        return self.name in self.content.pinned_names

    @property
    def running_requests(self) -> int:
        """Requests that came under this name and hold its content."""
        return sum(lease.holder is self for lease in self.content.leases)


class Lease:
    """A request's hold on a content; implements `engine.core.batch.AdapterLease`.

    Args:
        holder: The name that the request used; its content now is the request's to the end.
        on_release: Called once, when the request lets go.
    """

    def __init__(self, holder: AdapterName, on_release: Callable[[AdapterContent], None]) -> None:
        self.holder = holder
        self._content = holder.content
        self._on_release = on_release
        self._fault: RequestError | None = None
        self._content.leases.add(self)

    @property
    def content_hash(self) -> str:
        """Identity of the adapter."""
        return self._content.content_hash

    @property
    def is_ready(self) -> bool:
        """Whether the adapter is in memory; it stays there until the release."""
        return self._content.updates is not None

    @property
    def fault(self) -> RequestError | None:
        """Why the adapter could not be brought back into memory."""
        return self._fault

    def fail(self, reason: str) -> None:
        """Give the request up."""
        message = f"the adapter {self.holder.name!r} cannot be used: {reason}"
        self._fault = RequestError(code="adapter_not_loaded", message=message)

    def release(self) -> None:
        """Let go; idempotent."""
        if self in self._content.leases:
            self._content.leases.discard(self)
            self._on_release(self._content)
