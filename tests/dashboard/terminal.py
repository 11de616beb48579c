"""Looking at the app as an operator does: text on a grid of cells."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

from rich.cells import cell_len
from textual.pilot import Pilot

from dashboard.app import QuarterdeckTop
from dashboard.session import Session
from dashboard.source.frames import Source

PERIOD_S = 0.05


def an_app(source: Source, now_s: Callable[[], float] = time.monotonic) -> QuarterdeckTop:
    return QuarterdeckTop(Session(source, now_s), PERIOD_S)


def screen_lines(app: QuarterdeckTop) -> list[str]:
    """What stands on the screen, line by line."""
    width, height = app.size
    lines = _drawn_lines(app)
    assert len(lines) == height
    assert {cell_len(line) for line in lines} == {width}
    return lines


def is_laid_out(app: QuarterdeckTop) -> bool:
    """Whether the screen fills the terminal: one that was just opened has no layout yet."""
    width, height = app.size
    lines = _drawn_lines(app)
    return len(lines) == height and {cell_len(line) for line in lines} == {width}


def _drawn_lines(app: QuarterdeckTop) -> list[str]:
    strips = app.screen._compositor.render_strips(app.size)
    return ["".join(segment.text for segment in strip) for strip in strips]


def screen_text(app: QuarterdeckTop) -> str:
    return "\n".join(screen_lines(app))


async def until(pilot: Pilot[Any], is_so: Callable[[], bool], timeout_s: float = 10.0) -> None:
    """Wait until the app comes to a state; fails with the screen."""
    try:
        async with asyncio.timeout(timeout_s):
            while not (is_laid_out(pilot.app) and is_so()):
                await pilot.pause(0.05)
    except TimeoutError:
        raise AssertionError(screen_text(pilot.app)) from None


async def until_shown(pilot: Pilot[Any], *words: str) -> str:
    """Wait until all words stand on the screen; returns the screen."""
    await until(pilot, lambda: all(word in screen_text(pilot.app) for word in words))
    return screen_text(pilot.app)
