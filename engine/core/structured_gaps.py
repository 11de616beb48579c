"""What llguidance takes for more, or for less, than a JSON schema says."""

from collections.abc import Iterator
from copy import deepcopy
from typing import Any, cast

from engine.core.structured_schema import Schema, at_places, subschemas

EXACT = 2**53
"""Numbers are float64 in there: integers beyond are rounded."""
BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")

NEUTRAL: tuple[tuple[str, Any], ...] = (
    ("uniqueItems", False),
    ("dependencies", {}),
    ("dependentRequired", {}),
    ("dependentSchemas", {}),
    ("propertyNames", True),
    ("propertyNames", {}),
    ("propertyNames", {"type": "string"}),
    ("unevaluatedItems", True),
    ("unevaluatedItems", {}),
    ("unevaluatedProperties", True),
    ("unevaluatedProperties", {}),
)
"""Keywords that llguidance refuses, with the values by which they forbid nothing. Zod and others
write them."""


def without_neutral(schema: Schema) -> Schema:
    """Return a copy without what forbids nothing, and without options of the compiler."""
    schema = deepcopy(schema)
    schema.pop("x-guidance", None)
    for _, node in subschemas(schema):
        for keyword, value in NEUTRAL:
            if keyword in node and _is_same(node[keyword], value):
                del node[keyword]
    return schema


def gaps(schema: Schema) -> Iterator[str]:
    """Yield what the compiler would take and not keep."""
    ids: set[str] = {""}
    for pointer, node in subschemas(schema):
        for keyword, limit in _unkept(node):
            yield f"'{keyword}'{at_places([f'{pointer}/{keyword}'])} is supported {limit}"
        own_id = node.get("$id")
        if isinstance(own_id, str):
            if node is not schema and own_id.rstrip("#") in ids:
                yield f"'$id'{at_places([f'{pointer}/$id'])} is not the only one of this name"
            ids.add(own_id.rstrip("#"))


def _unkept(node: Schema) -> Iterator[tuple[str, str]]:
    """Yield keywords of a schema object, and within what they are kept."""
    if _counts_repeated_keys(node):
        yield "minProperties", "up to one more than there are 'required' properties"
    for keyword in BOUNDS:
        if _is_inexact(node.get(keyword)):
            yield keyword, "within -2^53 and 2^53"
    for keyword in ("const", "enum"):
        if _has_inexact(node.get(keyword)):
            yield keyword, "with integers within -2^53 and 2^53"


def _counts_repeated_keys(node: Schema) -> bool:
    """Whether a property that is written twice would have to be told from two properties."""
    least, required = node.get("minProperties"), node.get("required")
    num_required = len(required) if isinstance(required, list) else 0
    return isinstance(least, int | float) and least > num_required + 1


def _is_inexact(bound: object) -> bool:
    return isinstance(bound, int) and abs(bound) > EXACT


def _has_inexact(value: object) -> bool:
    if isinstance(value, dict | list):
        children = cast("list[object]", value if isinstance(value, list) else [*value.values()])
        return any(_has_inexact(child) for child in children)
    return _is_inexact(value)


def _is_same(value: object, other: object) -> bool:
    return type(value) is type(other) and value == other
