"""`tests.fakes.FakeEngine` as a process: `python -m tests.engine.client.fake_engine_process`.

`EngineConfig.model` may ask for trouble: `never-ready`, `crash`.
"""

import argparse
import asyncio
import os
import sys

import msgspec

from engine.config import EngineConfig
from engine.parent_death import watch_parent
from tests.fakes import FakeEngine


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--config-fd", type=int)
    parser.add_argument("--parent-fd", type=int)
    arguments = parser.parse_args()
    watch_parent(arguments.parent_fd)
    with os.fdopen(arguments.config_fd, "rb") as file:
        config = msgspec.json.decode(file.read(), type=EngineConfig)
    if config.model == "crash":
        print("no such luck", file=sys.stderr)
        return 3
    asyncio.run(serve(config))
    return 0


async def serve(config: EngineConfig) -> None:
    ready_ms = 10**6 if config.model == "never-ready" else 0
    await FakeEngine(config, ready_ms=ready_ms).run()


if __name__ == "__main__":
    sys.exit(main())
