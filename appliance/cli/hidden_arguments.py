"""Hides keys that were given as flags or variables from `ps` and from child processes."""

import os
from collections.abc import Iterable, MutableMapping
from pathlib import Path

_ARG_START = 47
"""Place of `arg_start` in /proc/self/stat, from 0. Source: man 5 proc_pid_stat, field 48."""
_FIRST_AFTER_NAME = 2
SECRET_VARIABLES = ("QUARTERDECK_API_KEY", "QUARTERDECK_ADMIN_KEY")


def forget_environment(environ: MutableMapping[str, str] = os.environ) -> None:
    """Take the keys out of the environment; they are in the settings by now."""
    for name in SECRET_VARIABLES:
        environ.pop(name, None)


def hide(secrets: Iterable[str]) -> bool:
    """Overwrite `secrets` in this process's command line, as `ps` shows it.

    Returns whether none of them stands there now. Only Linux lets a process do it.
    """
    wanted = [secret.encode() for secret in secrets if secret]
    if not wanted:
        return True
    try:
        shown = Path("/proc/self/cmdline").read_bytes()
        _overwrite(_arguments_start(), shown, wanted)
        return not any(secret in Path("/proc/self/cmdline").read_bytes() for secret in wanted)
    except (OSError, ValueError, IndexError):
        return False


def _arguments_start() -> int:
    """Return the address of the first argument."""
    stat = Path("/proc/self/stat").read_text()
    after_name = stat[stat.rindex(")") + 2 :].split()  # the name may hold blanks
    return int(after_name[_ARG_START - _FIRST_AFTER_NAME])


def _overwrite(start: int, shown: bytes, secrets: Iterable[bytes]) -> None:
    with Path("/proc/self/mem").open("r+b", buffering=0) as memory:
        for secret in secrets:
            at = shown.find(secret)
            while at >= 0:
                memory.seek(start + at)
                memory.write(b"*" * len(secret))
                at = shown.find(secret, at + len(secret))
