"""The slots from which a step can use adapters.

On the CPU the kernels read an adapter where it lies in host memory, so a slot is only the right to
be used and costs nothing. On a GPU a slot holds a copy in the device's memory.
"""

from collections.abc import Sequence

import torch

from engine.core.adapter_content import AdapterContent
from engine.layers.lora import AdapterUpdates


class AdapterSlots:
    """Adapters in use by steps; the least recently used one gives its slot up.

    A pinned adapter gives it up only if one step needs every slot for others.

    Args:
        num_slots: Adapters that one step can use.
        device: Where steps run.
    """

    def __init__(self, num_slots: int, device: torch.device) -> None:
        self.num_slots = num_slots
        self._device = device
        self._held: dict[str, tuple[AdapterContent, AdapterUpdates]] = {}
        """By content hash; the least recently used one first."""

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, content_hash: str) -> bool:
        return content_hash in self._held

    @property
    def num_bytes(self) -> int:
        """Return the size of the copies in the device's memory."""
        if self._device.type == "cpu":
            return 0
        return sum(content.num_bytes for content, _ in self._held.values())

    def bring(self, contents: Sequence[AdapterContent]) -> list[AdapterUpdates]:
        """Put contents that are in memory into slots, all at once; return their updates.

        Raises:
            LookupError: one is not in memory, or there are more of them than slots.
        """
        wanted = {content.content_hash for content in contents}
        if len(wanted) > self.num_slots:
            raise LookupError(f"a step uses {len(wanted)} adapters, there are {self.num_slots}")
        missing = len(wanted - self._held.keys())
        while len(self._held) + missing > self.num_slots:
            self.drop(self._victim(wanted))
        return [self._bring_one(content) for content in contents]

    def drop(self, content_hash: str) -> None:
        """Free the slot of a content, if it has one."""
        self._held.pop(content_hash, None)

    def _bring_one(self, content: AdapterContent) -> AdapterUpdates:
        if content.updates is None:
            raise LookupError(f"adapter {content.content_hash[:12]} is not in memory")
        held = self._held.pop(content.content_hash, None)
        updates = held[1] if held else _on_device(content.updates, self._device)
        self._held[content.content_hash] = content, updates
        return updates

    def _victim(self, wanted: set[str]) -> str:
        others = [content for content, _ in self._held.values()]
        others = [content for content in others if content.content_hash not in wanted]
        loose = [content for content in others if not content.pinned_names]
        return (loose or others)[0].content_hash


def _on_device(updates: AdapterUpdates, device: torch.device) -> AdapterUpdates:
    if device.type == "cpu":
        return updates
    return {name: [update.to(device) for update in together] for name, together in updates.items()}
