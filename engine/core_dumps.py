"""No core dumps: memory holds prompts and keys, and a dump would bring them to the disk.

What a crash left is told by the flight recorder, the stack dump of `faulthandler` and the log.
"""

import resource

NO_DUMP = 1
"""Bytes. Too few for a file, and the one limit that keeps the kernel from handing a dump to a
program, which 0 does not. Source: do_coredump() in fs/coredump.c of Linux."""


def forbid_core_dumps() -> None:
    """Let this process and its children leave no memory behind when they crash."""
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    soft = NO_DUMP if hard == resource.RLIM_INFINITY else min(NO_DUMP, hard)
    resource.setrlimit(resource.RLIMIT_CORE, (soft, hard))
