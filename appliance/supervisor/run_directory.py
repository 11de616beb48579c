"""The files of a running instance: the lock, the short run directory, and who finds it how.

Sockets live outside the state directory because ipc paths end at 107 bytes; `instance.json` in the
state directory points to them. What a killed instance left behind is swept at the next start:
children that outlived it first, then its directory.
"""

import fcntl
import json
import logging
import os
import secrets
import shutil
import stat
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from appliance.config.paths import INSTANCE_FILE
from appliance.supervisor.launcher.identity import (
    ProcessIdentity,
    identity_of,
    is_running,
    kill_exactly,
)

logger = logging.getLogger(__name__)

LOCK_FILE = "lock"
OWNER_FILE = "owner"
CHILDREN_FILE = "children"
RUN_FILE = "run"
SWEEP_WAIT_S = 2.0
MAX_RUNTIME_DIR_BYTES = 50
"""So that every socket path below it fits; see `engine.wire.addresses`."""


class InstanceError(Exception):
    """This state directory cannot be used; the message says why and what to do."""


class StateLock:
    """The exclusive claim on a state directory; the kernel releases it when the process ends."""

    def __init__(self, state_dir: Path) -> None:
        state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._fd = os.open(state_dir / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(self._fd, 32).decode(errors="replace").strip()
            os.close(self._fd)
            raise InstanceError(
                f"an appliance (process {holder or 'unknown'}) already runs with {state_dir}."
                " Stop it, or give this one another --state-dir."
            ) from None
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Give the claim back."""
        os.close(self._fd)


class RunDirectory:
    """A new 0700 directory with a short path, for the sockets of this run.

    Args:
        state_dir: Gets a file `run` that points to it.
        base: Where run directories of this user live.
    """

    def __init__(self, state_dir: Path, base: Path | None = None) -> None:
        base = base or default_base()
        _make_private(base)
        sweep(base)
        self.path = base / secrets.token_hex(4)
        self.path.mkdir(mode=0o700)
        self._state_dir = state_dir
        _write_identity(self.path / OWNER_FILE, identity_of(os.getpid()))
        write_private(state_dir / RUN_FILE, f"{self.path}\n")

    @property
    def data_socket(self) -> Path:
        """The data plane's unix socket."""
        return self.path / "data.sock"

    @property
    def admin_socket(self) -> Path:
        """The control plane's unix socket."""
        return self.path / "admin.sock"

    def note_child(self, pid: int) -> None:
        """Write down a child, for the sweep of the next start.

        The child runs already: a full disk only takes away this last of three ways to end it.
        """
        try:
            _write_identity(self.path / CHILDREN_FILE, identity_of(pid))
        except OSError as error:
            logger.error("process %d is not written down: %s", pid, error)  # noqa: TRY400 - as said

    def publish_instance(self, facts: Mapping[str, Any]) -> None:
        """Write `instance.json`: how the command line finds this instance."""
        content = json.dumps(
            {
                "pid": os.getpid(),
                "run_dir": str(self.path),
                "admin_socket": str(self.admin_socket),
                "data_socket": str(self.data_socket),
                **facts,
            }
        )
        write_private(self._state_dir / INSTANCE_FILE, content)

    def remove(self) -> None:
        """Remove it and the files that point to it."""
        (self._state_dir / INSTANCE_FILE).unlink(missing_ok=True)
        (self._state_dir / RUN_FILE).unlink(missing_ok=True)
        shutil.rmtree(self.path, ignore_errors=True)


def default_base() -> Path:
    """Return where run directories of this user live."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    is_usable = Path(runtime).is_absolute() and os.access(runtime, os.W_OK | os.X_OK)
    if is_usable and len(runtime.encode()) <= MAX_RUNTIME_DIR_BYTES:
        return Path(runtime) / "quarterdeck"
    return Path(f"/tmp/quarterdeck-{os.getuid()}")  # noqa: S108 - private: see _make_private


def sweep(base: Path) -> list[ProcessIdentity]:
    """Remove the run directories of dead owners, ending their surviving children first."""
    ended: list[ProcessIdentity] = []
    for directory in base.iterdir():
        owner = _read_identities(directory / OWNER_FILE)
        if not directory.is_dir() or any(map(is_running, owner)):
            continue
        if not owner and not _is_old(directory):
            continue  # its owner is just making it
        children = _read_identities(directory / CHILDREN_FILE)
        ended += [child for child in children if kill_exactly(child)]
        _wait_gone(children)
        shutil.rmtree(directory, ignore_errors=True)
    return ended


def write_private(path: Path, content: str) -> None:
    """Replace a file atomically, mode 0600."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "w") as file:
        file.write(content)
    fresh.replace(path)


def _make_private(base: Path) -> None:
    """Make the base directory; refuse one that somebody else could have put there."""
    base.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = base.lstat()
    is_ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
    if not is_ours or stat.S_IMODE(found.st_mode) & 0o077:
        raise InstanceError(f"{base} is not a private directory of this user; remove it first")


def _write_identity(path: Path, identity: ProcessIdentity | None) -> None:
    if identity is None:
        return
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "w") as file:
        file.write(f"{identity.pid} {identity.start_ticks}\n")


def _read_identities(path: Path) -> list[ProcessIdentity]:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return []
    pairs = [line.split() for line in lines]
    return [ProcessIdentity(int(p[0]), int(p[1])) for p in pairs if _is_identity(p)]


def _is_identity(pair: list[str]) -> bool:
    return len(pair) == len(ProcessIdentity._fields) and all(part.isdigit() for part in pair)


def _is_old(directory: Path) -> bool:
    """Whether a directory without an owner has been like this for a minute."""
    a_minute_s = 60.0
    return directory.stat().st_mtime < _wall_s() - a_minute_s


def _wall_s() -> float:
    """File times are wall-clock times."""
    return time.time()  # noqa: TID251


def _wait_gone(identities: list[ProcessIdentity]) -> None:
    deadline_s = time.monotonic() + SWEEP_WAIT_S
    while any(map(is_running, identities)) and time.monotonic() < deadline_s:
        time.sleep(0.01)
