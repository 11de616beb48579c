"""Tracebacks as text, with or without the exceptions' messages.

A message may quote what its function was given, and so a prompt. Frames and types hold source code
alone, and say where to look.
"""

import traceback
from collections.abc import Iterator

WITHHELD = "(message withheld: it may quote the request)"
MAX_CAUSES = 8
"""Longer chains are cut at the far end."""
_CAUSE = "The above exception was the direct cause of the following exception:"
_CONTEXT = "During handling of the above exception, another exception occurred:"


def exception_text(error: BaseException, *, withholds: bool) -> str:
    """Return the traceback of an exception, its causes first, as Python prints it.

    Args:
        error: What was raised.
        withholds: Leave the messages out.
    """
    return "\n".join(_chain(error, withholds, MAX_CAUSES))


def _chain(error: BaseException, withholds: bool, depth: int) -> Iterator[str]:
    before = error.__cause__
    if before is None and not error.__suppress_context__:
        before = error.__context__
    if before is not None and depth > 0:
        yield from _chain(before, withholds, depth - 1)
        yield f"\n{_CAUSE if error.__cause__ is not None else _CONTEXT}\n"
    yield "Traceback (most recent call last):"
    yield from (line.rstrip("\n") for line in traceback.format_tb(error.__traceback__))
    yield _last_line(error, withholds)
    if isinstance(error, BaseExceptionGroup) and depth > 0:
        for member in error.exceptions:
            lines = "\n".join(_chain(member, withholds, depth - 1))
            yield "\n".join(f"  | {line}" for line in lines.split("\n"))


def _last_line(error: BaseException, withholds: bool) -> str:
    kind = type(error)
    name = (
        kind.__qualname__
        if kind.__module__ == "builtins"
        else f"{kind.__module__}.{kind.__qualname__}"
    )
    if withholds:
        return f"{name}: {WITHHELD}"
    try:
        message = str(error)
    except Exception:  # noqa: BLE001 - a broken __str__ must not take the log line with it
        message = "(its message cannot be made)"
    return f"{name}: {message}" if message else name
