"""Exit codes of the command line, and the error that carries one."""

from enum import IntEnum


class Exit(IntEnum):
    """What a script can tell from the exit code."""

    OK = 0
    FAILED = 1
    USAGE = 2
    NO_ACCESS = 3
    """Not running, not reachable, or no valid key."""
    TIMEOUT = 4
    CONFLICT = 5
    DEGRADED = 6


class CliError(Exception):
    """A command failed; the message is for people, the code for scripts."""

    def __init__(self, message: str, code: Exit = Exit.FAILED, hint: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.hint = hint
