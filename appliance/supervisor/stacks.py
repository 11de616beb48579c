"""Where every thread of an engine is: py-spy, else the engine's own faulthandler.

py-spy looks from outside and so sees an engine that is stuck in C code; it needs the right to
trace, which the engine gives to its parent. faulthandler writes from inside, to stderr, and needs
no rights.
"""

import asyncio
import logging
import re
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from appliance.supervisor.admin.schemas import StackDump
from appliance.supervisor.launcher.launcher import Child

logger = logging.getLogger(__name__)

PY_SPY_S = 10.0
DUMP_S = 3.0
SETTLE_S = 0.1
"""After so long without another line a dump is complete."""
POLL_S = 0.02
TAIL_LINES = 200

_MANNERS: Sequence[Sequence[str]] = ((), ("--nonblocking",))
"""First with the process held still, for stacks that fit together; one that is stopped already
cannot be held, and is looked at as it is."""
_THREAD = re.compile(r"(Current thread|Thread) 0x[0-9a-f]+")
_DUMP = re.compile(r'(Current thread|Thread) 0x[0-9a-f]+|  (File "|\.\.\.|<)')


class StacksError(Exception):
    """Neither way gave stacks; the message says why."""


def py_spy_path() -> Path:
    """Return where py-spy lies: beside the interpreter."""
    return Path(sys.executable).parent / "py-spy"


async def dump_stacks(
    engine_id: str, child: Child, py_spy: Callable[[], Path] = py_spy_path
) -> StackDump:
    """Return the stacks of a running engine.

    Raises:
        StacksError: it cannot be traced and does not answer the signal.
    """
    problem = ""
    for flags in _MANNERS:
        text, problem = await _by_py_spy(py_spy(), child.pid, flags)
        if text is not None:
            return StackDump(engine=engine_id, pid=child.pid, tool="py-spy", text=text)
        logger.info("py-spy cannot look at %s: %s", engine_id, problem)
    lines = await _by_faulthandler(child)
    if not lines:
        raise StacksError(f"py-spy: {problem}; and the engine does not answer SIGUSR1")
    return StackDump(
        engine=engine_id, pid=child.pid, tool="faulthandler", text="\n".join(lines) + "\n"
    )


async def _by_py_spy(program: Path, pid: int, flags: Sequence[str]) -> tuple[str | None, str]:
    """Return the dump, or None and why there is none."""
    try:
        process = await asyncio.create_subprocess_exec(
            program,
            "dump",
            "--pid",
            str(pid),
            *flags,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
    except OSError as error:
        return None, str(error)
    try:
        async with asyncio.timeout(PY_SPY_S):
            output, complaint = await process.communicate()
    except TimeoutError:
        return None, f"no answer within {PY_SPY_S:g} s"
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode == 0 and output:
        return output.decode(errors="replace"), ""
    return None, complaint.decode(errors="replace").strip().partition("\n")[0] or "it failed"


async def _by_faulthandler(child: Child) -> Sequence[str]:
    """Ask the engine to write its stacks, and return what came."""
    before = child.tail(TAIL_LINES)
    if not child.signal(signal.SIGUSR1):
        return []
    fresh: Sequence[str] = []
    quiet_s = waited_s = 0.0
    while waited_s < DUMP_S and not (fresh and quiet_s >= SETTLE_S):
        await asyncio.sleep(POLL_S)
        waited_s += POLL_S
        found = _dump_in(_after(before, child.tail(TAIL_LINES)))
        quiet_s = 0.0 if len(found) != len(fresh) else quiet_s + POLL_S
        fresh = found
    return fresh


def _after(before: Sequence[str], now: Sequence[str]) -> Sequence[str]:
    """Return the lines that were not there before; old ones may have fallen off the front."""
    for dropped in range(len(before) + 1):
        kept = before[dropped:]
        if list(now[: len(kept)]) == list(kept):
            return now[len(kept) :]
    return now


def _dump_in(lines: Sequence[str]) -> list[str]:
    """Return the lines from the first thread on, without what others wrote in between."""
    start = next((index for index, line in enumerate(lines) if _THREAD.match(line)), len(lines))
    return [line for line in lines[start:] if not line or _DUMP.match(line)]
