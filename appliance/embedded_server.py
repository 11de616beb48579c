"""A uvicorn server inside a process that has more to do: it leaves signals and idle time alone."""

import asyncio
import contextlib
from collections.abc import Generator
from typing import Final

import uvicorn

from engine.shared_ticks import until_tick

TICK_S: Final = 0.1
"""uvicorn's own: so often it looks whether it shall end, and at every tenth time at the clock."""
TICKS: Final = 864_000


class EmbeddedServer(uvicorn.Server):
    """Several of them in one process wake it at the same moments."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        """Install no handlers: signals are the process's business."""
        yield

    async def main_loop(self) -> None:
        """Do what uvicorn does, at the process's ticks."""
        tick = 0
        while not await self.on_tick(tick):
            tick = (tick + 1) % TICKS
            await asyncio.sleep(until_tick(TICK_S))
