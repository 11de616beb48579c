"""`quarterdeck serve`: listen first, then everything else.

The ports answer connections while Python still imports: the kernel queues them for the gateways.
"""

import signal
import sys
from collections.abc import Mapping
from pathlib import Path

from appliance.config.network import is_loopback
from appliance.config.paths import state_dir
from appliance.config.settings import Settings
from appliance.supervisor.listeners import (
    ListenError,
    Listeners,
    bind_control_plane,
    bind_data_plane,
)

STOPPED = 0
"""Told to stop before the start was over: no failure."""
FAILED = 1


def serve(settings: Settings, origins: Mapping[str, str], executable: Path | None = None) -> int:
    """Run an appliance until it is told to stop; return the exit code.

    Args:
        settings: The whole configuration.
        origins: Where each setting came from, for messages.
        executable: Path of the command line's program, for lines to paste.
    """
    # until the loop handles them: whoever sees the port open may already want us to end
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.default_int_handler)
    listeners = Listeners()
    try:
        _refuse_open_door(settings)
        bind_data_plane(listeners, settings.host, settings.port, settings.gateways)
        bind_control_plane(listeners, settings.admin_host, settings.admin_port)
        from appliance.supervisor.instance import run_instance  # noqa: PLC0415 - after listening

        return run_instance(settings, listeners, executable)
    except ListenError as error:
        reason = _own_instance(settings) or f"{error}{_source(error, origins)}"
        sys.stderr.write(f"quarterdeck: {reason}\n")
        return FAILED
    except KeyboardInterrupt:
        return STOPPED
    finally:
        listeners.close()


def _own_instance(settings: Settings) -> str | None:
    """Return the complaint when it is this very appliance that holds the ports."""
    from appliance.supervisor.run_directory import (  # noqa: PLC0415 - after listening
        InstanceError,
        StateLock,
    )

    try:
        StateLock(state_dir(settings.state_dir)).release()
    except InstanceError as error:
        return str(error)
    except OSError:
        return None  # then the ports are the nearer problem
    return None


def _refuse_open_door(settings: Settings) -> None:
    """No key is needed with `--no-auth`: then only this machine may come in."""
    for host in (settings.host, settings.admin_host):
        if settings.no_auth and not is_loopback(host):
            raise ListenError(f"--no-auth works on loopback addresses only, not on {host}")


def _source(error: ListenError, origins: Mapping[str, str]) -> str:
    """Name the origin of the port that is taken, when somebody chose it."""
    origin = origins.get(error.setting or "", "default")
    return "" if origin == "default" else f" (set by {origin})"
