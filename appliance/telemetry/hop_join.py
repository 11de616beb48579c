"""Joins the two halves of a message's hop, whichever comes first, and gives up on lonely ones.

Both sides report their half in batches, so the halves meet here by (sender, epoch, sequence). A
send whose receiver died, or that nobody confirms, ends as a lost hop. Pure: the time is given.
"""

from collections.abc import Callable
from typing import TypeVar

import msgspec

from engine.wire.hops import HopReceived, HopRecord, HopSent
from engine.wire.messages import TRACED

TRACED_NAMES = frozenset(body.__name__ for body in TRACED)
CALL = "UtilityCall"

LONELY_NS = 5_000_000_000
"""Patience with a half whose other process is not known to live."""
ALIVE_NS = 30_000_000_000
"""Patience with a process that lives: a receiver's half comes when its logic is done with the
message, and either may have been stopped for a while."""
CALL_NS = 3_700_000_000_000
"""Patience with a living receiver's utility call: a `Sleep` may wait an hour for requests."""
LATE_NS = 1_000_000_000
"""A message of the other kinds gets a span when its transit took longer."""
MAX_PENDING = 20_000


class Hop(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A message's way: both halves, or one of them and why the other is missing."""

    sent: HopSent | None
    received: HopReceived | None
    lost: str | None = None
    lost_ns: int | None = None


HalfT = TypeVar("HalfT")
_Key = tuple[str, int, int, str]


class HopJoin:
    """Collects halves and emits each hop once.

    The message's name is part of the key: a process may number its engine messages and its
    control messages apart.
    """

    def __init__(self, emit: Callable[[Hop], None], max_pending: int = MAX_PENDING) -> None:
        self._emit = emit
        self._max_pending = max_pending
        self._sent: dict[_Key, tuple[HopSent, int]] = {}
        self._received: dict[_Key, tuple[HopReceived, int]] = {}
        self._alive_since_ns: dict[str, int] = {}
        self.evicted = 0
        """Halves that were given up because too many waited."""

    def __len__(self) -> int:
        return len(self._sent) + len(self._received)

    def add(self, half: HopRecord, now_ns: int) -> None:
        """Take one half."""
        if isinstance(half, HopSent):
            self._add_sent(half, now_ns)
        else:
            self._add_received(half, now_ns)

    def awaits(self, trace_id: str, start_ns: int, end_ns: int) -> bool:
        """Whether a message of a request that ran from `start_ns` to `end_ns` may lack a half.

        A received half does not name its trace, so any that was sent in that time counts.
        """
        return any(
            sent.trace_id == trace_id
            or any(link.context.trace_id == trace_id for link in sent.links)
            for sent, _ in self._sent.values()
        ) or any(start_ns <= got.sent_ns <= end_ns for got, _ in self._received.values())

    def lives(self, process: str, now_ns: int) -> None:
        """A process gave a sign of life."""
        self._alive_since_ns.setdefault(process, now_ns)

    def died(self, process: str, now_ns: int) -> None:
        """A process is gone: what was sent to it and not confirmed is lost."""
        self._alive_since_ns.pop(process, None)
        for key in [k for k, (sent, _) in self._sent.items() if sent.destination == process]:
            self._lose_sent(key, "receiver_died", now_ns)

    def expire(self, now_ns: int) -> None:
        """Give up on halves that have waited too long. Call it about ten times a second."""
        for key in _overdue(self._sent, now_ns, self._patience_ns):
            self._lose_sent(key, "not_confirmed", now_ns)
        for key in _overdue(self._received, now_ns, self._patience_with_sender_ns):
            self._lose_received(key)

    def forget(self) -> None:
        """Drop all that waits: nobody records the other halves any more."""
        self._sent.clear()
        self._received.clear()

    def finish(self, now_ns: int) -> None:
        """Emit all that still waits; the end of the hub."""
        for key in list(self._sent):
            self._lose_sent(key, "not_confirmed", now_ns)
        for key in list(self._received):
            self._lose_received(key)

    def _add_sent(self, half: HopSent, now_ns: int) -> None:
        if half.error is not None:
            self._emit(Hop(half, None, half.error, now_ns))
            return
        if half.message not in TRACED_NAMES:
            return
        key = (half.sender, half.sender_epoch, half.sequence, half.message)
        other = self._received.pop(key, None)
        if other is not None:
            self._emit(Hop(half, other[0]))
            return
        self._sent[key] = (half, now_ns)
        if len(self._sent) > self._max_pending:
            self.evicted += 1
            self._lose_sent(next(iter(self._sent)), "too_many_pending", now_ns)

    def _add_received(self, half: HopReceived, now_ns: int) -> None:
        if half.message not in TRACED_NAMES:
            if half.outcome != "ok" or half.received_ns - half.sent_ns > LATE_NS:
                self._emit(Hop(None, half))
            return
        key = (half.sender, half.sender_epoch, half.sequence, half.message)
        other = self._sent.pop(key, None)
        if other is not None:
            self._emit(Hop(other[0], half))
            return
        self._received[key] = (half, now_ns)
        if len(self._received) > self._max_pending:
            self.evicted += 1
            self._lose_received(next(iter(self._received)))

    def _patience_ns(self, sent: HopSent) -> int:
        if not self._lives_since(sent.destination, sent.sent_ns):
            return LONELY_NS  # it went to nobody, or to a predecessor
        return CALL_NS if sent.message == CALL else ALIVE_NS

    def _patience_with_sender_ns(self, received: HopReceived) -> int:
        return ALIVE_NS if self._lives_since(received.sender, received.sent_ns) else LONELY_NS

    def _lives_since(self, process: str, at_ns: int) -> bool:
        alive_since_ns = self._alive_since_ns.get(process)
        return alive_since_ns is not None and alive_since_ns <= at_ns

    def _lose_sent(self, key: _Key, reason: str, now_ns: int) -> None:
        sent, _ = self._sent.pop(key)
        self._emit(Hop(sent, None, reason, now_ns))

    def _lose_received(self, key: _Key) -> None:
        received, _ = self._received.pop(key)
        self._emit(Hop(None, received, "send_not_reported"))


def _overdue(
    waiting: dict[_Key, tuple[HalfT, int]], now_ns: int, patience_ns: Callable[[HalfT], int]
) -> list[_Key]:
    overdue: list[_Key] = []
    for key, (half, since_ns) in waiting.items():
        if now_ns - since_ns < LONELY_NS:
            break  # in order of arrival
        if now_ns - since_ns >= patience_ns(half):
            overdue.append(key)
    return overdue
