"""Where the appliance keeps its files, and which instance is running there.

Imports nothing heavy: every client command starts here.
"""

import json
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

NAME = "quarterdeck"
CONFIG_NAME = "quarterdeck.toml"
INSTANCE_FILE = "instance.json"
SYSTEM_CONFIG = Path("/etc") / NAME / CONFIG_NAME


class NotRunningError(Exception):
    """No appliance runs with this state directory."""


@dataclass(frozen=True, slots=True)
class Instance:
    """A running appliance, as its supervisor wrote it to `instance.json`."""

    pid: int
    run_dir: Path
    admin_socket: Path
    data_socket: Path
    host: str
    port: int
    admin_port: int


def state_dir(flag: Path | None = None, env: Mapping[str, str] = os.environ) -> Path:
    """Return the state directory: flag, `QUARTERDECK_STATE_DIR`, else the platform's."""
    if flag is not None:
        return flag.expanduser().absolute()
    if named := env.get("QUARTERDECK_STATE_DIR"):
        return Path(named).expanduser().absolute()
    import platformdirs  # noqa: PLC0415  (27 ms that most calls do not need)

    return platformdirs.user_state_path(NAME)


def model_dir(flag: Path | None = None, env: Mapping[str, str] = os.environ) -> Path:
    """Return the directory of models, which all instances share.

    Flag, `QUARTERDECK_MODEL_DIR`, else the platform's.
    """
    if flag is not None:
        return flag.expanduser().absolute()
    if named := env.get("QUARTERDECK_MODEL_DIR"):
        return Path(named).expanduser().absolute()
    import platformdirs  # noqa: PLC0415  (27 ms that most calls do not need)

    return platformdirs.user_data_path(NAME) / "models"


def weight_cache_dir(setting: Path | str | None) -> Path | None:
    """Return where packed weights are kept, which all instances share; None: nowhere.

    Args:
        setting: `weight_cache`: a path, `off`, or None for the platform's directory.
    """
    if setting is not None:
        return Path(setting).absolute() if isinstance(setting, Path) else None
    import platformdirs  # noqa: PLC0415  (27 ms that most calls do not need)

    return platformdirs.user_cache_path(NAME) / "weights"


def user_config() -> Path:
    """Return the path of the user's configuration file; it need not exist."""
    import platformdirs  # noqa: PLC0415  (27 ms that most calls do not need)

    return platformdirs.user_config_path(NAME) / CONFIG_NAME


def client_state_dir(flag: Path | None = None) -> Path:
    """Return the state directory a client command means.

    As `state_dir`, but before the platform's default come the configuration files that `serve`
    would read here: so `ps` beside a `quarterdeck.toml` finds the instance that it started.
    """
    if flag is not None or os.environ.get("QUARTERDECK_STATE_DIR"):
        return state_dir(flag)
    for path in (Path.cwd() / CONFIG_NAME, user_config(), SYSTEM_CONFIG):
        if named := _named_in(path):
            return (path.parent / Path(named).expanduser()).absolute()
    return state_dir()


def find_instance(directory: Path) -> Instance:
    """Return the appliance that runs with this state directory.

    Raises:
        NotRunningError: none does; the message says why one thinks so.
    """
    path = directory / INSTANCE_FILE
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        instance = _instance(found)
    except FileNotFoundError as error:
        raise NotRunningError(f"no appliance is running in {directory}") from error
    except OSError as error:
        raise NotRunningError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise NotRunningError(f"{path} is not an instance file: {error}") from error
    if not _is_alive(instance.pid):
        raise NotRunningError(
            f"no appliance is running in {directory}: process {instance.pid} is gone"
        )
    return instance


def _instance(found: Any) -> Instance:
    return Instance(
        pid=int(found["pid"]),
        run_dir=Path(found["run_dir"]),
        admin_socket=Path(found["admin_socket"]),
        data_socket=Path(found["data_socket"]),
        host=str(found["host"]),
        port=int(found["port"]),
        admin_port=int(found["admin_port"]),
    )


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _named_in(path: Path) -> str | None:
    try:
        settings = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None  # `serve` and `config show` report a broken file; a client command may go on
    named = cast("object", settings.get("state_dir"))
    return named if isinstance(named, str) else None
