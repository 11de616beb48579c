"""Where things are in a JSON schema: refusals and warnings name the place."""

import copy
from collections.abc import Callable, Iterator
from typing import Any, cast
from urllib.parse import quote

Schema = dict[str, Any]

SCHEMA_KEYS = frozenset(
    {
        "additionalItems",
        "additionalProperties",
        "contains",
        "contentSchema",
        "else",
        "if",
        "items",
        "not",
        "propertyNames",
        "then",
        "unevaluatedItems",
        "unevaluatedProperties",
    }
)
"""Their value is a schema."""
SCHEMA_LIST_KEYS = frozenset({"allOf", "anyOf", "items", "oneOf", "prefixItems"})
SCHEMA_MAP_KEYS = frozenset(
    {
        "$defs",
        "definitions",
        "dependencies",
        "dependentSchemas",
        "patternProperties",
        "properties",
    }
)
"""Their value has schemas by name."""
MAX_PLACES = 3
MAX_POINTER_CHARS = 120


def subschemas(schema: object, pointer: str = "#") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every schema object with its JSON pointer, the outermost first.

    Values of `enum`, `const`, `default` and `examples` are no schemas, whatever they look like.
    """
    if not isinstance(schema, dict):
        return
    node = cast("dict[str, Any]", schema)
    yield pointer, node
    for key, value in node.items():
        for step, child in _children(key, value):
            yield from subschemas(child, f"{pointer}/{_escaped(key)}{step}")


def not_schemas(schema: Schema) -> list[str]:
    """Return the pointers of what stands in a schema's place and is none."""
    return [
        f"{pointer}/{_escaped(key)}{step}"
        for pointer, node in subschemas(schema)
        for key, value in node.items()
        for step, child in _children(key, value)
        if not isinstance(child, dict | bool) and key != "dependencies"
    ]


def _children(key: str, value: object) -> Iterator[tuple[str, object]]:
    if isinstance(value, list) and key in SCHEMA_LIST_KEYS:
        yield from ((f"/{index}", child) for index, child in enumerate(value))
    elif isinstance(value, dict) and key in SCHEMA_MAP_KEYS:
        yield from ((f"/{_escaped(name)}", child) for name, child in value.items())
    elif key in SCHEMA_KEYS:
        yield "", value


def places(
    schema: Schema, keyword: str, suits: Callable[[Any], bool] = lambda _value: True
) -> list[str]:
    """Return the pointers of a keyword whose value suits."""
    return [
        f"{pointer}/{_escaped(keyword)}"
        for pointer, node in subschemas(schema)
        if keyword in node and suits(node[keyword])
    ]


def at_places(pointers: list[str]) -> str:
    """Say where: ` (at #/a and #/b)`, or nothing when it is not known."""
    if not pointers:
        return ""
    shown = [_short_pointer(pointer) for pointer in pointers[:MAX_PLACES]]
    more = len(pointers) - len(shown)
    return f" (at {', '.join(shown)}{f' and {more} more' if more else ''})"


def without_bad_patterns(
    schema: Schema, fault_of: Callable[[str], str | None]
) -> tuple[Schema, list[str]]:
    """Return a copy without the patterns that have a fault, and what was left out."""
    schema = copy.deepcopy(schema)
    warnings: list[str] = []
    for pointer, node in subschemas(schema):
        pattern = node.get("pattern")
        if isinstance(pattern, str) and (fault := fault_of(pattern)):
            del node["pattern"]
            warnings.append(f"a 'pattern'{at_places([f'{pointer}/pattern'])}: {fault}")
        by_name = node.get("patternProperties")
        if isinstance(by_name, dict):
            bad = [name for name in cast("dict[str, Any]", by_name) if fault_of(name)]
            if bad:
                node["patternProperties"] = {k: v for k, v in by_name.items() if k not in bad}
                where = at_places([f"{pointer}/patternProperties"])
                warnings.append(f"{len(bad)} 'patternProperties'{where}: {fault_of(bad[0])}")
    return schema, warnings


def _escaped(name: str) -> str:
    """Write a name as a part of a pointer in a URI's fragment: plain ASCII.

    Source:
        RFC 6901, sections 3 and 6.
    """
    return quote(name.replace("~", "~0").replace("/", "~1"), safe="~$", errors="replace")


def _short_pointer(pointer: str) -> str:
    return pointer if len(pointer) <= MAX_POINTER_CHARS else f"{pointer[:MAX_POINTER_CHARS]}..."
