"""Starts children on this machine, in three layers of dying with their parent.

The child holds the reading end of a pipe whose writing end only the supervisor has (end of file:
the supervisor is gone), asks the kernel for SIGKILL at its parent's death (PR_SET_PDEATHSIG, which
fires when the *thread* that started it ends: hence the main thread only), and is written down in
the run directory, where the next start looks for survivors.
"""

import asyncio
import os
import re
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping

from appliance.supervisor.launcher.identity import ProcessIdentity, identity_of
from appliance.supervisor.launcher.launcher import OnLine, OnStart, ProcessSpec
from appliance.supervisor.scheduling import under
from engine.log_lines import MAX_LINE_BYTES, escape, plain_text, redact

TAIL_LINES = 200
READ_BYTES = 8192
"""A flood is taken in bites of some milliseconds, between which the loop does other things."""

_SECRET = re.compile(
    r"^QUARTERDECK_.*KEY|API_?KEY"
    r"|(KEY|TOKEN|SECRET|PASS|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|HEADER|COOKIE|DSN)S?(_|$)",
    re.IGNORECASE,
)


def child_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without what looks like a secret, by its name or by its value."""
    kept = {
        name: value
        for name, value in environment.items()
        if not _SECRET.search(name) and not redact.knows(value)
    }
    return kept | {"PYTHONUNBUFFERED": "1"}


class LocalChild:
    """A child process and what it writes; see `launcher.Child`."""

    def __init__(
        self, name: str, process: "subprocess.Popen[bytes]", death_pipe: int, on_line: OnLine
    ) -> None:
        self._name = name
        self._process = process
        self._death_pipe = death_pipe
        self._on_line = on_line
        self._lines: deque[str] = deque(maxlen=TAIL_LINES)
        self._partial = b""
        self._loop = asyncio.get_running_loop()
        self._exit: asyncio.Future[int] = self._loop.create_future()
        self._pidfd = os.pidfd_open(process.pid)
        identity = identity_of(process.pid)
        assert identity is not None, "an unreaped child has an identity"
        self.identity: ProcessIdentity = identity
        assert process.stdout is not None
        self._output = process.stdout.fileno()
        os.set_blocking(self._output, False)
        self._loop.add_reader(self._pidfd, self._reap)
        self._loop.add_reader(self._output, self._read)

    @property
    def name(self) -> str:
        """Name of its specification."""
        return self._name

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """Exit code, -signal, or None while it runs."""
        return self._process.returncode

    def signal(self, number: int) -> bool:
        """Send a signal through the pidfd: it can reach no other process."""
        if self._process.returncode is not None:
            return False
        try:
            signal.pidfd_send_signal(self._pidfd, number)
        except ProcessLookupError:
            return False
        return True

    async def wait(self) -> int:
        """Return the confirmed exit status; see `launcher.Child`."""
        return await asyncio.shield(self._exit)

    def tail(self, lines: int) -> list[str]:
        """Return what it said in its last lines, without secrets; see `launcher.Child`."""
        return [escape(redact(plain_text(line))) for line in list(self._lines)[-lines:]]

    def close(self) -> None:
        """Give the descriptors back."""
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        os.close(self._death_pipe)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _reap(self) -> None:
        """The pidfd became readable: the process has ended."""
        status = self._process.poll()
        if status is None:
            return
        self._loop.remove_reader(self._pidfd)
        self._read()  # its last words may still be in the pipe
        self._loop.remove_reader(self._output)
        self._flush()
        if not self._exit.done():
            self._exit.set_result(status)

    def _read(self) -> None:
        """Take what the child wrote: a full pipe would block it and look like a hang."""
        try:
            chunk = os.read(self._output, READ_BYTES)
        except BlockingIOError:
            return
        if not chunk:
            self._loop.remove_reader(self._output)
            return
        *lines, self._partial = (self._partial + chunk).split(b"\n")
        for line in lines:
            self._take(line)
        if len(self._partial) > MAX_LINE_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._partial:
            self._take(self._partial)
            self._partial = b""

    def _take(self, line: bytes) -> None:
        text = line[:MAX_LINE_BYTES].decode(errors="replace").rstrip()
        self._lines.append(text)
        self._on_line(self._name, text)


class LocalLauncher:
    """Starts `python -m MODULE` children with this interpreter.

    Args:
        on_line: Gets every line that children write.
        on_spawn: Gets the pid of every child.
        on_start: Told of every child before it starts.
        policy: Scheduling policy of the children; None: the main thread's.
    """

    def __init__(
        self,
        on_line: OnLine,
        on_spawn: Callable[[int], None] | None = None,
        on_start: OnStart | None = None,
        policy: int | None = None,
    ) -> None:
        self._on_line = on_line
        self._on_spawn = on_spawn
        self._on_start = on_start
        self._policy = policy

    def spawn(self, spec: ProcessSpec) -> LocalChild:
        """Start a process; only from the main thread. Raises OSError."""
        assert threading.current_thread() is threading.main_thread(), (
            "PR_SET_PDEATHSIG fires at the death of the thread that started the child"
        )
        if self._on_start is not None:
            self._on_start(spec.name, spec.epoch)
        config_fd = _memory_file(spec.name, spec.config)
        death_read, death_write = os.pipe()
        try:
            with under(self._policy):
                process = self._popen(spec, config_fd, death_read)
        except BaseException:
            os.close(death_write)
            raise
        finally:
            os.close(config_fd)
            os.close(death_read)
        if self._on_spawn is not None:
            self._on_spawn(process.pid)
        return LocalChild(spec.name, process, death_write, self._on_line)

    def _popen(
        self, spec: ProcessSpec, config_fd: int, death_read: int
    ) -> "subprocess.Popen[bytes]":
        fds = ("--config-fd", str(config_fd), "--parent-fd", str(death_read))
        return subprocess.Popen(  # noqa: S603 - our own interpreter and modules
            [sys.executable, "-P", "-m", spec.module, *fds],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            bufsize=0,
            pass_fds=(config_fd, death_read, *spec.inherited_fds),
            start_new_session=True,
            env=child_environment(os.environ),
        )


def _memory_file(name: str, content: bytes) -> int:
    """Return a descriptor of an anonymous file that holds `content`, at its beginning."""
    fd = os.memfd_create(f"quarterdeck-{name}")
    with os.fdopen(os.dup(fd), "wb") as file:
        file.write(content)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd
