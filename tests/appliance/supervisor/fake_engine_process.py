"""A fake engine as a process: `python -m ... --config-fd N --parent-fd M`, as a real one starts.

What it does is in the name of its model: `well`, `crash` (dies once it is ready), `crash-early`,
`config-error`, `loud` (writes more than a pipe holds, without a newline), `busy` (will not sleep),
`mute` (never answers a call), `no-wake` (refuses to wake), `forgetful` (wakes as another model).
An adapter whose directory has a file `refused-by-e1` is refused by that engine; one with a file
`e1-is-blind` is another for that engine than for others.
"""

import argparse
import asyncio
import faulthandler
import os
import signal
import sys
from pathlib import Path

import msgspec

from engine.config import EngineConfig
from engine.parent_death import watch_parent
from engine.wire.calls import LoadAdapter, Sleep, Wake, WakeReport
from engine.wire.header import Header
from engine.wire.messages import UtilityCall, UtilityError, UtilityReply
from tests.fakes import FakeEngine

CONFIG_ERROR = 78


class Difficult(FakeEngine):
    """Answers some calls in its own way."""

    @property
    def _name(self) -> str:
        return self.config.engine_id

    async def _utility(self, index: int, header: Header, body: UtilityCall) -> None:
        error, result = None, msgspec.Raw(b"\xc0")
        match self.config.model, body.call:
            case "mute", _:
                return
            case "busy", Sleep():
                error = UtilityError(code="busy", message="1 request runs")
            case "no-wake", Wake():
                error = UtilityError(code="internal_error", message="no memory")
            case "forgetful", Wake():
                report = WakeReport(resident_bytes=1, took_ns=1, canary_ok=False)
                result = msgspec.Raw(msgspec.msgpack.encode(report))
            case _, LoadAdapter(path=path) if (Path(path) / f"refused-by-{self._name}").exists():
                error = UtilityError(code="invalid", message="it does not fit the model")
            case _, LoadAdapter(path=path) if (Path(path) / f"{self._name}-is-blind").exists():
                elsewhere = msgspec.structs.replace(body.call, path=str(Path(path).parent))
                await super()._utility(index, header, msgspec.structs.replace(body, call=elsewhere))
                return
            case _:
                await super()._utility(index, header, body)
                return
        reply = UtilityReply(call_id=body.call_id, error=error, result=result)
        await self._send(index, reply, header.context, call=type(body.call).__name__)


async def run(config: EngineConfig) -> None:
    engine = Difficult(config)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(engine.run())
        if config.model == "crash":
            await asyncio.sleep(0.1)
            os.kill(os.getpid(), signal.SIGKILL)
        await stop.wait()
        running.cancel()


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--config-fd", type=int)
    parser.add_argument("--parent-fd", type=int)
    arguments = parser.parse_args()
    watch_parent(arguments.parent_fd)
    faulthandler.register(signal.SIGUSR1)
    with os.fdopen(arguments.config_fd, "rb") as file:
        config = msgspec.json.decode(file.read(), type=EngineConfig)
    match config.model:
        case "crash-early":
            sys.stderr.write("no such weights\n")
            return 1
        case "config-error":
            return CONFIG_ERROR
        case "loud":
            sys.stdout.write("x" * 300_000)
            sys.stdout.flush()
    asyncio.run(run(config))
    return 0


if __name__ == "__main__":
    sys.exit(main())
