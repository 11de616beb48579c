"""The real engine process around a runner without a model.

Run with `python -m tests.engine.core.hash_engine`. `EngineConfig.model` may ask for trouble:
`config-error`, `crash-at-load`, `deaf` and `mute` (the input or output thread dies at its next
message).
"""

import sys
import threading

from engine.__main__ import main
from engine.config import EngineConfig
from engine.wire import sockets
from tests.engine.core.kv_runner import KvRunner

sockets.HIGH_WATER_MARK = 16  # so that a client that does not read is noticed soon


def make_runner(config: EngineConfig) -> KvRunner:
    if config.model == "crash-at-load":
        raise RuntimeError("no such luck")
    if config.model in {"deaf", "mute"}:
        sabotage(config.model)
    load_error = "no such model" if config.model == "config-error" else None
    return KvRunner(256, config.block_size, max_model_len=2000, load_error=load_error)


def sabotage(kind: str) -> None:
    """Make an IO thread raise at the next message that passes through it."""
    name, method = {"deaf": ("input", "_receive"), "mute": ("output", "_distribute")}[kind]
    (thread,) = [thread for thread in threading.enumerate() if thread.name == name]

    if kind == "mute":
        thread._send_at_once = lambda _: False  # all is left to the thread

    def fail(*_: object) -> None:
        delattr(thread, method)
        raise RuntimeError("sabotage")

    setattr(thread, method, fail)


if __name__ == "__main__":
    sys.exit(main(make_runner))
