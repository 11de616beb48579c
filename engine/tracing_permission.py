"""Lets the supervisor and what it starts look at this process's stacks. Standard library only."""

import ctypes
import logging
import os

logger = logging.getLogger(__name__)

PR_SET_PTRACER = 0x59616D61
"""From linux/prctl.h; `Yama` in ASCII."""


def let_parent_trace() -> None:
    """Allow the parent and its other children to attach, where the kernel restricts that.

    With Yama's `ptrace_scope` at 1, the default of many distributions, only ancestors may; py-spy
    is a sibling. Kernels without Yama refuse the call and need none.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PTRACER, ctypes.c_ulong(os.getppid()), 0, 0, 0) != 0:
        logger.debug("no tracer is named: %s", os.strerror(ctypes.get_errno()))
