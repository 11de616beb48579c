"""Protobuf's varints and lengths, and the attributes of spans in them."""

import struct
from collections.abc import Mapping
from typing import Final

from appliance.telemetry.span_data import AttributeValue

MAX_KEYS: Final = 512
MAX_HEADS: Final = 2048
MAX_TEXTS: Final = 64
"""Values of a key whose bytes are kept: the first ones. Ids have more, and never come again."""
MAX_TEXT_BYTES: Final = 64
"""Longer texts are encoded anew each time."""
_MASK_64 = (1 << 64) - 1
_INT_64 = range(-(1 << 63), 1 << 63)
_MORE, _SEVEN_BITS = 0x80, 0x7F
_SMALL: Final = tuple(bytes((n,)) for n in range(_MORE)) + tuple(
    bytes((n & _SEVEN_BITS | _MORE, n >> 7)) for n in range(_MORE, 1 << 11)
)
MAX_VARINT_BYTES: Final = 10
_DOUBLE = struct.Struct("<d")
# tags of KeyValue and AnyValue
_KEY, _VALUE, _ITEM = b"\x0a", b"\x12", b"\x0a"
_TEXT, _FLAG, _INT, _FLOAT, _ARRAY = b"\x0a", b"\x10", b"\x18", b"\x21", b"\x2a"


def varint(number: int) -> bytes:
    """Return an integer of 64 bits, seven bits a byte, the lowest first."""
    if 0 <= number < len(_SMALL):
        return _SMALL[number]
    number &= _MASK_64
    encoded = bytearray()
    while number >= _MORE:
        encoded.append(number & _SEVEN_BITS | _MORE)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def delimited(tag: bytes, body: bytes) -> bytes:
    """Return a field that has its length in front."""
    return tag + varint(len(body)) + body


class KeyValues:
    """Encodes attributes, as the repeated field `tag` of `KeyValue`s.

    What stands in front of a value is kept by key and size of the value; values that come again are
    kept whole. Keys are a closed set, up to what a bound is for.
    """

    def __init__(self, tag: bytes) -> None:
        self._tag = tag
        self._texts: dict[str, dict[str, bytes]] = {}
        self._text_heads: dict[tuple[str, int], bytes] = {}
        self._int_heads: dict[str, tuple[bytes, ...]] = {}

    def extend(self, parts: list[bytes], attributes: Mapping[str, AttributeValue]) -> None:
        """Append the pieces of these attributes to `parts`."""
        add, texts, int_heads = parts.append, self._texts, self._int_heads
        for key, value in attributes.items():  # the hottest loop of the export
            if type(value) is str:
                known = texts.get(key)
                field = None if known is None else known.get(value)
                add(self._text(key, value) if field is None else field)
            elif type(value) is int and value in _INT_64:
                encoded = varint(value)
                heads = int_heads.get(key) or self._heads(key)
                add(heads[len(encoded)])
                add(encoded)
            else:
                encoded = _any_value(value)
                add(self._head(key, b"", len(encoded)))
                add(encoded)

    def _text(self, key: str, value: str) -> bytes:
        """Encode a text that is not known, and keep it if its key seems to have few."""
        encoded = value.encode(errors="replace")
        size = len(encoded)
        field = (self._text_heads.get((key, size)) or self._text_head(key, size)) + encoded
        if size <= MAX_TEXT_BYTES:
            if len(self._texts) >= MAX_KEYS:
                self._texts.clear()
            known = self._texts.setdefault(key, {})
            if len(known) < MAX_TEXTS:
                known[value] = field
        return field

    def _text_head(self, key: str, size: int) -> bytes:
        if len(self._text_heads) >= MAX_HEADS:
            self._text_heads.clear()
        head = self._text_heads[key, size] = self._head(key, _TEXT + varint(size), size)
        return head

    def _heads(self, key: str) -> tuple[bytes, ...]:
        if len(self._int_heads) >= MAX_KEYS:
            self._int_heads.clear()
        heads = tuple(self._head(key, _INT, size) for size in range(MAX_VARINT_BYTES + 1))
        self._int_heads[key] = heads
        return heads

    def _head(self, key: str, tag: bytes, size: int) -> bytes:
        """Return what stands in front of `size` bytes of a value."""
        name = delimited(_KEY, key.encode(errors="replace"))
        before = name + _VALUE + varint(len(tag) + size) + tag
        return self._tag + varint(len(before) + size) + before


def _any_value(value: AttributeValue) -> bytes:
    """Return an `AnyValue`; integers beyond 64 bits become text."""
    match value:
        case bool():
            return _FLAG + varint(value)
        case int():
            return _INT + varint(value) if value in _INT_64 else _any_value(str(value))
        case float():
            return _FLOAT + _DOUBLE.pack(value)
        case str():
            return delimited(_TEXT, value.encode(errors="replace"))
        case _:
            items = b"".join(delimited(_ITEM, _any_value(item)) for item in value)
            return delimited(_ARRAY, items)
