"""Starts the engines of an offline client, watches them, and ends them.

Without torch. The configuration goes through an anonymous file, the parent's death through a pipe;
what an engine writes goes into a log file. Each process is started and awaited by a thread of its
own: the kernel's signal at the parent's death goes by the thread that started the child, so that
thread must live as long as the child, and then it may as well say when the child has ended.
"""

import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from engine.client.core_client import EngineStartError
from engine.clock import now_ns
from engine.config import EngineConfig
from engine.wire.addresses import check_run_dir

logger = logging.getLogger(__name__)

OnExit = Callable[[str, int, int], None]
"""Called with (engine id, epoch, exit status), in the thread that watched the process."""

ENGINE_MODULE = "engine"
GRACE_S = 10.0
"""From SIGTERM to SIGKILL."""
KILLED_S = 10.0
"""A killed process that is not gone by then hangs in the kernel."""
TAIL_LINES = 15
TAIL_BYTES = 8192


def private_directory() -> Path:
    """Make a directory for sockets that only this user can enter.

    It is short, because socket paths must be: `/tmp` where the platform's is too long.
    """
    path = Path(tempfile.mkdtemp(prefix="quarterdeck-"))
    try:
        check_run_dir(path)
    except ValueError:
        path.rmdir()
        path = Path(tempfile.mkdtemp(prefix="qd-", dir="/tmp"))
    return path


def remove_directory(path: Path) -> None:
    """Remove a private directory."""
    shutil.rmtree(path, ignore_errors=True)


class EngineProcess:
    """One engine's process.

    Args:
        config: Of the engine.
        log_path: Takes what it writes.
        on_exit: Told when it has ended.
        module: What `python -m` runs.
    """

    def __init__(
        self, config: EngineConfig, log_path: Path, on_exit: OnExit, module: str = ENGINE_MODULE
    ) -> None:
        self.config = config
        self.log_path = log_path
        self._on_exit = on_exit
        self._module = module
        self._process: subprocess.Popen[bytes] | None = None
        self._pidfd = -1
        self._problem: OSError | None = None
        self._spawned, self._exited = threading.Event(), threading.Event()
        self._keeper = threading.Thread(
            target=self._keep, name=f"{config.engine_id}-keeper", daemon=True
        )

    @property
    def pid(self) -> int | None:
        """Process id, once started."""
        return self._process.pid if self._process else None

    def start(self) -> None:
        """Start it; returns when it runs. Raises OSError."""
        self._keeper.start()
        self._spawned.wait()
        if self._problem is not None:
            raise self._problem

    def signal(self, number: int) -> None:
        """Send a signal to exactly this process, if it still runs."""
        if self._pidfd >= 0 and not self._exited.is_set():
            try:
                signal.pidfd_send_signal(self._pidfd, number)
            except (ProcessLookupError, OSError) as error:
                logger.debug("%s was gone before signal %d: %s", self._name, number, error)

    def wait(self, timeout_s: float) -> bool:
        """Wait for its confirmed end; false when it has not come by then."""
        return not self._keeper.is_alive() or self._exited.wait(max(0.0, timeout_s))

    def tail(self) -> str:
        """Return the last lines of its log."""
        try:
            with self.log_path.open("rb") as file:
                file.seek(0, os.SEEK_END)
                file.seek(max(0, file.tell() - TAIL_BYTES))
                lines = file.read().decode(errors="replace").splitlines()
        except OSError:
            return ""
        return "\n".join(lines[-TAIL_LINES:])

    @property
    def _name(self) -> str:
        return self.config.engine_id

    def _keep(self) -> None:
        """Start the process and wait for its end: see the module."""
        death_read, death_write = os.pipe()
        try:
            process = self._popen(death_read)
            self._process, self._pidfd = process, os.pidfd_open(process.pid)
        except OSError as error:
            self._problem = error
            return
        finally:
            os.close(death_read)
            if self._problem is not None:
                os.close(death_write)
            self._spawned.set()
        status = process.wait()
        self._exited.set()
        os.close(death_write)
        os.close(self._pidfd)
        self._on_exit(self.config.engine_id, self.config.epoch, status)

    def _popen(self, death_read: int) -> "subprocess.Popen[bytes]":
        config_fd = _memory_file(self._name, msgspec.json.encode(self.config))
        fds = ("--config-fd", str(config_fd), "--parent-fd", str(death_read))
        try:
            with self.log_path.open("ab") as log:
                return subprocess.Popen(  # noqa: S603 - our own interpreter and modules
                    [sys.executable, "-P", "-m", self._module, *fds],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    pass_fds=(config_fd, death_read),
                    start_new_session=True,  # Ctrl-C is for its parent
                    env=os.environ | {"PYTHONUNBUFFERED": "1"},
                )
        finally:
            os.close(config_fd)


class LocalEngines:
    """The engine processes of one client, started and ended together.

    Args:
        processes: Not started yet.
    """

    def __init__(self, processes: Sequence[EngineProcess]) -> None:
        self._processes = processes

    @property
    def pids(self) -> list[int]:
        """Of those that were started."""
        return [process.pid for process in self._processes if process.pid is not None]

    def start(self) -> None:
        """Start all; when one cannot be started, `stop` ends the others.

        Raises:
            EngineStartError: the system refused a process.
        """
        for process in self._processes:
            try:
                process.start()
            except OSError as error:
                message = f"engine {process.config.engine_id} could not be started: {error}"
                raise EngineStartError(message) from error

    def stop(self, grace_s: float = GRACE_S) -> None:
        """End all and wait until they are gone: SIGTERM, after `grace_s` SIGKILL."""
        started = [process for process in self._processes if process.pid is not None]
        for process in started:
            process.signal(signal.SIGTERM)
        deadline_ns = now_ns() + int(grace_s * 1e9)
        for process in started:
            if not process.wait((deadline_ns - now_ns()) / 1e9):
                logger.warning("engine %s does not end: killed", process.config.engine_id)
                process.signal(signal.SIGKILL)
        for process in started:
            if not process.wait(KILLED_S):
                logger.error("process %s hangs in the kernel", process.pid)


def _memory_file(name: str, content: bytes) -> int:
    """Return a descriptor of an anonymous file that holds `content`, at its beginning."""
    fd = os.memfd_create(f"quarterdeck-{name}")
    with os.fdopen(os.dup(fd), "wb") as file:
        file.write(content)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd
