"""What one epoch of an engine is known to have of LoRA adapters: plain values."""

from dataclasses import dataclass, field

from engine.wire.calls import AdapterState


@dataclass(slots=True)
class AdapterFacts:
    """Goes with the engine's epoch: a new process has nothing."""

    held: dict[str, AdapterState] = field(default_factory=dict[str, AdapterState])
    """As the engine last told; what it has but should not is in it, too."""
    errors: dict[str, str] = field(default_factory=dict[str, str])
    """Why it does not have what it should have; not tried again before it starts or wakes."""
    loading: set[str] = field(default_factory=set[str])
    listed_ns: int | None = None
    """When the engine last told all that it has; None: it must be asked."""
    is_unsure: bool = False
    """A call went astray: it may have what nobody knows of."""
    listed_step: int | None = None
    """Its step counter at that time: a step can have changed who uses what."""
