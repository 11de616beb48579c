"""Entry point of a gateway's process: `python -m appliance.gateway --config-fd N --parent-fd M`."""

import argparse
import asyncio
import faulthandler
import logging
import os
import resource
import signal
import sys

from engine.core_dumps import forbid_core_dumps
from engine.log_lines import configure_logging
from engine.parent_death import watch_parent

EXIT_CONFIG_ERROR = 78
"""EX_CONFIG of sysexits.h."""
WANTED_DESCRIPTORS = 4096

logger = logging.getLogger(__name__)


def main() -> int:
    """Run a gateway; return its exit code."""
    arguments = _parse_arguments()
    watch_parent(arguments.parent_fd)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # ctrl-c reaches the whole terminal group
    forbid_core_dumps()
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)
    _raise_descriptor_limit()

    import uvloop  # noqa: PLC0415 - the parent is watched before anything slow

    from appliance.gateway.config import ConfigError, read_config  # noqa: PLC0415
    from appliance.gateway.serve import serve  # noqa: PLC0415

    configure_logging("gateway", None)
    try:
        config = read_config(arguments.config_fd)
    except ConfigError as error:
        logger.error("%s", error)  # noqa: TRY400
        return EXIT_CONFIG_ERROR
    log_format = "json" if config.log_format == "json" else "text"
    configure_logging(config.name, config.epoch, config.log_level, log_format)
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # junk is answered, not logged
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve(config, os.getpid()))
    except ConfigError as error:
        logger.error("%s", error)  # noqa: TRY400
        return EXIT_CONFIG_ERROR
    return 0


def _raise_descriptor_limit() -> None:
    """A connection is a descriptor, and the usual soft limit is low."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = WANTED_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, WANTED_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="appliance.gateway")
    parser.add_argument("--config-fd", type=int, required=True)
    parser.add_argument("--parent-fd", type=int)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
