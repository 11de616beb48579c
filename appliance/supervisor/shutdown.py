"""The ordered end: drain, error frames, SIGTERM, SIGKILL, and a ceiling that nothing outlasts."""

import asyncio
import contextlib
import logging
import os
import signal
import threading
from collections.abc import Generator
from typing import Protocol

logger = logging.getLogger(__name__)

SIGNALS = (signal.SIGTERM, signal.SIGINT)
FRAMES_S = 1.0
"""After the drain deadline gateways send their error frames; then signals follow."""
CEILING_S = 7.0
"""The process ends at most this long after the drain deadline."""
CEILING_EXIT = 70
"""EX_SOFTWARE: the ordered end did not come about."""


class Endable(Protocol):
    """What `Shutdown` ends: the supervisor."""

    def begin_drain(self, drain_s: float) -> None:
        """Take no new requests and let running ones finish."""
        ...

    async def drained(self, timeout_s: float) -> bool:
        """Wait for the gateways to go."""
        ...

    def stop(self) -> None:
        """End all processes in order."""
        ...

    def kill(self) -> None:
        """End all processes at once."""
        ...


class Shutdown:
    """Turns SIGTERM and SIGINT into an ordered end; the second one ends at once."""

    def __init__(self, drain_s: float) -> None:
        self._drain_s = drain_s
        self._signals = 0
        self._first = asyncio.Event()
        self._second = asyncio.Event()

    @contextlib.contextmanager
    def signals(self) -> Generator[None]:
        """Handle the signals on the running loop; afterwards they do what they did before."""
        loop = asyncio.get_running_loop()
        before = {number: signal.getsignal(number) for number in SIGNALS}
        for number in SIGNALS:
            loop.add_signal_handler(number, self.request)
        try:
            yield
        finally:
            for number, handler in before.items():
                loop.remove_signal_handler(number)
                signal.signal(number, handler)

    def request(self) -> None:
        """Ask for the end; a second call makes it immediate."""
        self._signals += 1
        (self._second if self._first.is_set() else self._first).set()

    async def run(self, appliance: Endable) -> None:
        """Wait for the request and carry the end out; returns once `stop` was called."""
        await self._first.wait()
        logger.info("stopping; running requests have %g s (again: at once)", self._drain_s)
        start_ceiling(self._drain_s + CEILING_S)
        appliance.begin_drain(self._drain_s)
        async with asyncio.TaskGroup() as tasks:
            drained = tasks.create_task(appliance.drained(self._drain_s + FRAMES_S))
            hurried = tasks.create_task(self._second.wait())
            await asyncio.wait({drained, hurried}, return_when=asyncio.FIRST_COMPLETED)
            is_hurried = hurried.done()
            drained.cancel()
            hurried.cancel()
        if is_hurried:
            logger.info("stopping at once")
            appliance.kill()
        appliance.stop()


def start_ceiling(after_s: float) -> None:
    """End this process after `after_s` whatever happens: a plain thread, no event loop needed."""
    thread = threading.Timer(after_s, os._exit, args=(CEILING_EXIT,))
    thread.daemon = True
    thread.start()
