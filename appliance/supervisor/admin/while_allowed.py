"""Ends a stream whose reader may not read it any more."""

from collections.abc import Callable

from starlette.types import Message, Send


class WhileAllowed:
    """A `send` that ends an answer without a length once its key was revoked or has expired.

    The server then tells the route that the reader has left, so nothing runs on for nobody.

    Args:
        send: The next one.
        is_allowed: Asked before each piece of a stream.
    """

    def __init__(self, send: Send, is_allowed: Callable[[], bool]) -> None:
        self._send = send
        self._is_allowed = is_allowed
        self._is_stream = False
        self._has_ended = False

    async def __call__(self, message: Message) -> None:
        """Pass a message on, or end the stream in its place."""
        if self._has_ended:
            return
        if message["type"] == "http.response.start":
            names = {name.lower() for name, _ in message.get("headers", ())}
            self._is_stream = b"content-length" not in names
        elif self._is_stream and message.get("more_body", False) and not self._is_allowed():
            self._has_ended = True
            message = {**message, "body": b"", "more_body": False}
        await self._send(message)
