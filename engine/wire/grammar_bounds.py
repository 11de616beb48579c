"""How large a grammar may be: checked at the front and again at the engine."""

from typing import Any

import msgspec

MAX_SOURCE_BYTES = 256 * 1024
MAX_NESTING = 64
"""Levels of arrays and objects in a JSON schema."""
MAX_ENUM_VALUES = 5000
"""Over all `enum`s of a schema."""
MAX_CHOICES = 5000

_Node = dict[str, Any] | list[Any]


def size_complaint(source: str) -> str | None:
    """Return why a grammar's source may not be used, or None."""
    try:
        num_bytes = len(source.encode())
    except UnicodeEncodeError:
        return "it holds half a surrogate pair"
    if num_bytes > MAX_SOURCE_BYTES:
        return f"it has {num_bytes} bytes; at most {MAX_SOURCE_BYTES} are taken"
    return None


def schema_complaint(schema: object) -> str | None:
    """Return why a decoded JSON schema is too much, or None. Never recurses."""
    level: list[_Node] = [schema] if isinstance(schema, dict | list) else []
    num_values = 0
    for _ in range(MAX_NESTING):
        if not level:
            return None
        num_values += sum(_num_enum_values(node) for node in level)
        if num_values > MAX_ENUM_VALUES:
            return f"its enums have more than {MAX_ENUM_VALUES} values"
        level = [child for node in level for child in _children(node)]
    return f"it is nested more than {MAX_NESTING} levels deep" if level else None


def choices_of(source: str) -> list[str]:
    """Return the strings of a `choice` grammar.

    Raises:
        ValueError: it is no list of 1 to `MAX_CHOICES` strings.
    """
    try:
        choices = msgspec.json.decode(source, type=list[str])
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError("the choices must be a list of strings") from error
    if not 1 <= len(choices) <= MAX_CHOICES:
        raise ValueError(f"there must be 1 to {MAX_CHOICES} choices, not {len(choices)}")
    return choices


def _num_enum_values(node: _Node) -> int:
    values = node.get("enum") if isinstance(node, dict) else None
    return len(values) if isinstance(values, list) else 0


def _children(node: _Node) -> list[_Node]:
    values = node.values() if isinstance(node, dict) else node
    return [value for value in values if isinstance(value, dict | list)]
