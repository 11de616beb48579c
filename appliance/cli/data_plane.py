"""What the commands that use the data plane share: its errors in the user's words, safe text."""

import json
import socket
import unicodedata
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import httpx

_FAILED, USAGE, NO_CONNECTION, TIMED_OUT = 1, 2, 3, 4
SOCKET_URL = "http://quarterdeck"
"""What stands where an address would when the appliance's unix socket is meant."""


class DataPlaneError(Exception):
    """The server did not answer, or not to the end; `exit_code` is what the command returns."""

    def __init__(self, message: str, exit_code: int = _FAILED) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def check_listening(socket_path: Path) -> None:
    """Make sure that a server listens on this unix socket.

    Raises:
        DataPlaneError: none does.
    """
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(socket_path))
        except OSError as error:
            raise _not_running() from error


@dataclass(frozen=True, slots=True)
class ServedModel:
    """One row of `/v1/models`; other servers than ours do not tell the length."""

    name: str
    max_model_len: int | None


def served_model(response: httpx.Response, asked: str | None = None) -> ServedModel:
    """Return the model that is asked for, or the first one, from the answer of `/v1/models`.

    Raises:
        DataPlaneError: the list was refused, is empty, or lacks the model.
    """
    check_status(response)
    try:
        rows = cast("list[dict[str, Any]]", response.json()["data"])
        models = [ServedModel(str(row["id"]), row.get("max_model_len")) for row in rows]
    except (ValueError, LookupError, TypeError, AttributeError):
        models = []
    if not models:
        raise DataPlaneError("the server names no model that it serves")
    if asked is None:
        return models[0]
    for model in models:
        if model.name == asked:
            return model
    names = ", ".join(model.name for model in models)
    raise DataPlaneError(f"no model {asked!r} is served here; served: {names}", USAGE)


def check_status(response: httpx.Response) -> None:
    """Raise the server's own words if it refused. The body must have been read.

    Raises:
        DataPlaneError: it did.
    """
    if response.is_success:
        return
    message = _error_message(response.content)
    is_refused = response.status_code in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN)
    raise DataPlaneError(
        f"{response.status_code}: {message}", NO_CONNECTION if is_refused else _FAILED
    )


def connection_error(error: httpx.HTTPError) -> DataPlaneError:
    """Say what a failed exchange means to the user."""
    if isinstance(error, httpx.TimeoutException):
        return DataPlaneError("the server does not answer", TIMED_OUT)
    if isinstance(error, httpx.ConnectError):
        url = str(error.request.url)
        return _not_running() if url.startswith(SOCKET_URL) else _unreachable(url, error)
    return DataPlaneError(
        f"the connection broke: {str(error) or type(error).__name__}", NO_CONNECTION
    )


DONE: dict[str, Any] = {}
"""What `event_of` returns for the last line of a stream that is complete."""


def event_of(line: str) -> dict[str, Any] | None:
    """Return the event in one line of a stream, `DONE`, or None for comments and empty lines.

    Raises:
        DataPlaneError: it is an error frame, or no event of this protocol.
    """
    if not line.startswith("data:"):
        return None
    text = line[5:].strip()
    if text == "[DONE]":
        return DONE
    try:
        event = cast("dict[str, Any]", json.loads(text))
        error = cast("dict[str, Any] | None", event.get("error"))
    except (ValueError, AttributeError) as junk:
        raise DataPlaneError("the server sent something that is no event") from junk
    if error is not None:
        raise DataPlaneError(str(error.get("message")))
    return event


def printable(text: str) -> str:
    """Remove what a terminal would obey: control and format characters, but no line break or tab.

    The two joiners stay: scripts and emoji need them, and no terminal acts on them.
    """
    return "".join(
        character
        for character in text
        if character in "\n\t\u200c\u200d" or unicodedata.category(character) not in _OBEYED
    )


_OBEYED = {"Cc", "Cf", "Cs", "Zl", "Zp"}


def _not_running() -> DataPlaneError:
    return DataPlaneError(
        "no server is running here: start one with `quarterdeck serve`", NO_CONNECTION
    )


def _unreachable(url: str, error: httpx.ConnectError) -> DataPlaneError:
    return DataPlaneError(f"cannot reach {url}: {error}", NO_CONNECTION)


def _error_message(body: bytes) -> str:
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, LookupError, TypeError):
        return body[:200].decode("utf-8", "replace")
