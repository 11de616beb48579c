"""Adapters in host memory: a bounded number, the least recently used one leaves first.

A content that has left is read again from its path when a request asks for it, and must still be
the same. When every place is taken by adapters in use, what is asked for waits until one is let
go; when all are pinned it never could, so its requests fail.
"""

import logging
from collections import deque
from collections.abc import Callable
from pathlib import Path

from engine.core.adapter_config import AdapterError
from engine.core.adapter_content import AdapterContent, AdapterName
from engine.core.adapter_jobs import AdapterJobs
from engine.core.adapter_reader import ReadAdapter
from engine.core.adapter_slots import AdapterSlots

logger = logging.getLogger(__name__)

RETRY_NS = 10 * 10**9
"""A content that could not be read again is not tried more often: each try reads it all."""


class AdapterMemory:
    """The contents that an engine knows, and which of them are in memory.

    Args:
        num_places: Contents in memory at once.
        slots: What leaves memory leaves its slot too.
        jobs: Reads them.
        clock: Nanoseconds.
    """

    def __init__(
        self, num_places: int, slots: AdapterSlots, jobs: AdapterJobs, clock: Callable[[], int]
    ) -> None:
        self.num_places = num_places
        self.contents: dict[str, AdapterContent] = {}
        """By content hash; the least recently used one first."""
        self._slots = slots
        self._jobs = jobs
        self._clock = clock
        self._waiting: deque[AdapterContent] = deque()
        self._reading: list[AdapterContent] = []
        self._is_asleep = False

    @property
    def num_bytes(self) -> int:
        """Return the size of all that is in memory."""
        return sum(c.num_bytes for c in self.contents.values() if c.updates is not None)

    def put(self, read: ReadAdapter, path: Path, replaced: AdapterName | None) -> AdapterContent:
        """Take what has been read; `replaced` is about to stand for it.

        Raises:
            AdapterError: no content may leave for it.
        """
        content = self.contents.get(read.content_hash)
        if content is None:
            content = AdapterContent(
                read.content_hash, path, read.rank, read.targets, read.num_bytes
            )
        if content.updates is None and content.job is None and not self._is_asleep:
            self._make_room(replaced)
        self.contents[read.content_hash] = content
        content.path, content.fault = path, None
        if not self._is_asleep:
            self._fill(content, read)
        self.touch(content)
        return content

    def touch(self, content: AdapterContent) -> None:
        """Note that a content is used now."""
        self.contents[content.content_hash] = self.contents.pop(content.content_hash)

    def want(self, content: AdapterContent) -> None:
        """Bring a content into memory if it is not there, or say why that cannot be."""
        if content.updates is not None or content.job is not None or content in self._waiting:
            return
        if content.fault is not None and self._clock() - content.fault_at_ns < RETRY_NS:
            _fail_leases(content, content.fault)
            return
        content.fault = None
        self._waiting.append(content)
        self._read_waiting()

    def settle(self, content: AdapterContent) -> None:
        """A name or a request has let a content go: forget it if it was the last, use the room."""
        if not content.is_needed:
            self._leave(content)
            del self.contents[content.content_hash]
        self._read_waiting()

    def advance(self) -> None:
        """Take in what the reading thread has finished."""
        for content in [c for c in self._reading if c.job is not None and c.job.is_done]:
            self._finish(content)
        self._read_waiting()

    def release_all(self) -> None:
        """Give all memory back until `restore`."""
        self._is_asleep = True
        for content in self.contents.values():
            self._leave(content)

    def restore(self) -> None:
        """Allow memory again: pinned contents are read at once, others when they are asked for."""
        self._is_asleep = False
        for content in list(self.contents.values()):
            content.fault = None
            if content.pinned_names or content.leases:
                self.want(content)
        self._read_waiting()

    # ------------------------------------------------------------ places

    @property
    def _num_taken(self) -> int:
        resident = sum(content.updates is not None for content in self.contents.values())
        return resident + len(self._reading)

    def _make_room(self, replaced: AdapterName | None = None) -> None:
        if self._num_taken < self.num_places:
            return
        victim = _goes_anyway(replaced) or next(
            (content for content in self.contents.values() if content.may_leave), None
        )
        if victim is None:
            raise AdapterError(
                f"there is no room: all {self.num_places} adapters in memory are pinned or in use"
            )
        logger.info("adapter %s leaves memory", _short(victim))
        self._leave(victim)

    def _leave(self, content: AdapterContent) -> None:
        self._slots.drop(content.content_hash)
        content.updates = None
        if content.job is not None:
            content.job.cancel()
            content.job = None
            self._reading.remove(content)

    def _fill(self, content: AdapterContent, read: ReadAdapter) -> None:
        if content.job is not None:
            content.job.cancel()
            content.job = None
            self._reading.remove(content)
        if content.updates is None:
            content.updates = read.updates

    # ------------------------------------------------------------ reading again

    def _read_waiting(self) -> None:
        while self._waiting and not self._is_asleep:
            content = self._waiting[0]
            if content.updates is None and (content.leases or content.pinned_names):
                try:
                    self._make_room()
                except AdapterError as error:
                    if not self._all_pinned:
                        return  # until a request lets go
                    self._fail(content, str(error))
                else:
                    content.job = self._jobs.start(content.path)
                    self._reading.append(content)
            self._waiting.popleft()

    @property
    def _all_pinned(self) -> bool:
        pinned = [c for c in self.contents.values() if c.updates is not None and c.pinned_names]
        return len(pinned) >= self.num_places

    def _finish(self, content: AdapterContent) -> None:
        job, content.job = content.job, None
        assert job is not None, "only what is being read can be finished"
        self._reading.remove(content)
        if job.adapter is None:
            self._fail(content, job.error or "it could not be read")
        elif job.adapter.content_hash != content.content_hash:
            self._fail(content, f"{job.path} has changed since it was loaded: load it again")
        else:
            self._take_back(content, job.adapter)

    def _take_back(self, content: AdapterContent, read: ReadAdapter) -> None:
        """A pinned one goes to its slot; what goes wrong there ends its requests, not the loop."""
        content.updates = read.updates
        try:
            if content.pinned_names:
                self._slots.bring([content])
        except Exception as error:
            logger.exception("adapter %s could not be brought into a slot", _short(content))
            self._leave(content)
            self._fail(content, f"it could not be brought into a slot: {error}")

    def _fail(self, content: AdapterContent, reason: str) -> None:
        logger.warning("adapter %s cannot be read again: %s", _short(content), reason)
        content.fault, content.fault_at_ns = reason, self._clock()
        _fail_leases(content, reason)


def _goes_anyway(replaced: AdapterName | None) -> AdapterContent | None:
    """Return the content in memory that nobody needs once its name stands for another."""
    if replaced is None:
        return None
    content = replaced.content
    alone = content.names == {replaced.name} and not content.leases
    return content if alone and content.updates is not None else None


def _fail_leases(content: AdapterContent, reason: str) -> None:
    for lease in content.leases:
        lease.fail(reason)


def _short(content: AdapterContent) -> str:
    return content.content_hash[:12]
