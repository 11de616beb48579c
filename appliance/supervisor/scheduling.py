"""The supervisor gives way: what it does may wait a moment, a step of an engine may not.

A thread under Linux's SCHED_BATCH (sched(7)) gets its share of the processor as ever, but does not
take a core from a running thread when it wakes. See `ops/decisions/0013-supervisor-gives-way.md`.
"""

import logging
import os
from collections.abc import Generator
from contextlib import contextmanager

logger = logging.getLogger(__name__)


def give_way() -> int | None:
    """Put this thread, and those that it starts from now on, under SCHED_BATCH.

    Another policy than the default is somebody's choice and stays.

    Returns:
        The policy to start children under; None: that of the thread that starts them.
    """
    if os.sched_getscheduler(0) != os.SCHED_OTHER or not _set_policy(os.SCHED_BATCH):
        return None
    return os.SCHED_OTHER


@contextmanager
def under(policy: int | None) -> Generator[None]:
    """Put this thread under another policy for a while: a child that it starts inherits it."""
    before = os.sched_getscheduler(0)
    changed = policy is not None and _set_policy(policy)
    try:
        yield
    finally:
        if changed:
            _set_policy(before)


def _set_policy(policy: int) -> bool:
    try:
        os.sched_setscheduler(0, policy, os.sched_param(0))
    except OSError as error:  # a sandbox may refuse the call
        logger.debug("the scheduling policy stays: %s", error)
        return False
    return True
