"""A child dies with its parent, by two independent means, because each alone fails.

The kernel's signal at the parent's death fires even while a C call holds the GIL, but only for the
thread that spawned the child; the pipe's end of file needs a running interpreter, but knows no
threads. Standard library only: gateways use it too.
"""

import ctypes
import logging
import os
import signal
import threading

logger = logging.getLogger(__name__)

PR_SET_PDEATHSIG = 1
"""From linux/prctl.h."""
PARENT_DIED_EXIT_CODE = 71


def watch_parent(parent_fd: int | None) -> None:
    """End this process when its parent dies.

    Call it first thing, in the main thread.

    Args:
        parent_fd: Read end of a pipe whose write end only the parent holds; None: there is none.
    """
    parent_pid = os.getppid()
    _ask_kernel_for_death_signal()
    if os.getppid() != parent_pid:  # it died before the kernel knew
        os._exit(PARENT_DIED_EXIT_CODE)
    if parent_fd is not None:
        os.set_inheritable(parent_fd, False)
        threading.Thread(
            target=_exit_at_end_of_file, args=(parent_fd,), name="parent-watch", daemon=True
        ).start()


def _ask_kernel_for_death_signal() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        logger.warning("no death signal from the kernel: %s", os.strerror(ctypes.get_errno()))


def _exit_at_end_of_file(parent_fd: int) -> None:
    while os.read(parent_fd, 1):
        continue
    os._exit(PARENT_DIED_EXIT_CODE)
