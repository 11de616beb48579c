"""Entry point of an engine core's process: `python -m engine --config-fd N [--parent-fd M]`.

The configuration comes as JSON on an inherited descriptor: nothing is in argv or the environment.
"""

import argparse
import faulthandler
import logging
import os
import signal
import sys
from typing import NoReturn

import msgspec

from engine.config import EngineConfig
from engine.core.process import EXIT_CONFIG_ERROR, EngineCoreProc, MakeRunner, torch_runner
from engine.core_dumps import forbid_core_dumps
from engine.log_lines import configure_logging
from engine.parent_death import watch_parent
from engine.tracing_permission import let_parent_trace

logger = logging.getLogger(__name__)

SPIN_COUNT = "1000"


def main(make_runner: MakeRunner = torch_runner) -> int:
    """Run an engine core; return its exit code."""
    arguments = _parse_arguments()
    _bound_spinning()
    watch_parent(arguments.parent_fd)
    let_parent_trace()
    forbid_core_dumps()
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)
    configure_logging("engine", None)
    try:
        config = _read_config(arguments.config_fd)
    except (OSError, ValueError) as error:
        logger.error("no usable configuration on descriptor %d: %s", arguments.config_fd, error)  # noqa: TRY400
        return EXIT_CONFIG_ERROR
    log_format = "json" if config.log_format == "json" else "text"
    configure_logging(config.engine_id, config.epoch, config.log_level, log_format)
    return EngineCoreProc(config, make_runner).run()


def _bound_spinning() -> None:
    """Let OpenMP's threads spin only shortly between two parallel regions.

    Spinning threads take the cores from those that have work as soon as anything else runs, see
    `ops/decisions/0003-short-spinning.md`. OpenMP reads this when torch is imported.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPIN_COUNT)


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="engine")
    parser.add_argument("--config-fd", type=int, required=True)
    parser.add_argument("--parent-fd", type=int)
    return parser.parse_args()


def _read_config(descriptor: int) -> EngineConfig:
    with os.fdopen(descriptor, "rb") as file:
        config = msgspec.json.decode(file.read(), type=EngineConfig)
    if not config.clients:
        raise ValueError("it names no client")
    return config


def end(exit_code: int) -> NoReturn:
    """End the process without tearing the interpreter down.

    With torch that takes 0.5 to 1.5 s, and nothing is left to give back.
    """
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)


if __name__ == "__main__":
    end(main())
