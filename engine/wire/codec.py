"""Bodies and headers to bytes and back: msgpack, decoded by the type that the type byte names."""

from collections.abc import Mapping

import msgspec

from engine.wire.header import Header
from engine.wire.messages import TYPE_BYTES, Body

Buffer = bytes | bytearray | memoryview


class UndecodableError(Exception):
    """The frames are not a message of this protocol: drop and count them."""


class Codec:
    """Encodes and decodes one closed set of messages.

    Args:
        type_bytes: Type byte of each body type; nothing else is ever decoded.
    """

    def __init__(self, type_bytes: Mapping[type[Body], bytes]) -> None:
        self._encoder = msgspec.msgpack.Encoder()
        self._type_bytes = dict(type_bytes)
        self._decoders: dict[bytes, msgspec.msgpack.Decoder[Body]] = {
            byte: msgspec.msgpack.Decoder(kind) for kind, byte in type_bytes.items()
        }
        self._header = msgspec.msgpack.Decoder(Header)

    def encode(self, header: Header, body: Body) -> list[bytes]:
        """Return the frames `[type byte, header, body]`."""
        return [
            self._type_bytes[type(body)],
            self._encoder.encode(header),
            self._encoder.encode(body),
        ]

    def decode_header(self, frame: Buffer) -> Header:
        """Decode a header frame.

        Raises:
            UndecodableError: not a header.
        """
        try:
            return self._header.decode(frame)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
            raise UndecodableError(f"header: {error}") from error

    def decode_body(self, type_byte: Buffer, frame: Buffer) -> Body:
        """Decode a body frame by its type byte.

        Raises:
            UndecodableError: unknown type byte, or a body of another shape.
        """
        decoder = self._decoders.get(bytes(type_byte))
        if decoder is None:
            raise UndecodableError(f"unknown type byte {bytes(type_byte)[:4]!r}")
        try:
            return decoder.decode(frame)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
            raise UndecodableError(f"body: {error}") from error


ENGINE_CODEC = Codec(TYPE_BYTES)
"""The codec of the engine wire."""
