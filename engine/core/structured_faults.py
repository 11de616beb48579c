"""What is wrong with a grammar, in words for the client who wrote it."""

import re
from collections.abc import Callable
from typing import Any

import msgspec

from engine.core.structured_schema import Schema, at_places, not_schemas, places, subschemas

MAX_FAULT_CHARS = 300

_REGEX_PREFIX = re.compile(r'^(at \d+\(\d+\): )?invalid regex ".*?" \(in regex\): ', re.DOTALL)
_REGEX_ERROR = re.compile(r"^error: (.*)", re.MULTILINE)


class RefusedGrammarError(Exception):
    """The grammar cannot be followed; the text names the fault."""


def short(message: str) -> str:
    """Return the part of a compiler's message that says what is wrong: one line of ASCII."""
    if message.startswith("NoExtension"):
        return "nothing can match it"
    message = _REGEX_PREFIX.sub("", message)
    error = _REGEX_ERROR.search(message)
    line = error[1] if error else message.strip().partition("\n")[0].strip()
    return line[:MAX_FAULT_CHARS].encode("ascii", "backslashreplace").decode()


def schema_fault(message: str, schema: Schema) -> str:
    """Return the fault of a schema with the keyword and where that is.

    Args:
        message: Of llguidance, an error or a warning; it names no place.
        schema: What it is about.
    """
    for pattern, describe in _DESCRIPTIONS:
        if found := re.match(pattern, message, re.DOTALL):
            return describe(found, schema)
    return short(message)


def _keywords(found: re.Match[str], schema: Schema) -> str:
    names = msgspec.json.decode(found[1], type=list[str])
    parts = [f"'{name}'{at_places(places(schema, name))}" for name in names]
    return f"{', '.join(parts)} is not supported"


def _format(found: re.Match[str], schema: Schema) -> str:
    name = found[1].strip()
    where = at_places(places(schema, "format", lambda value: value == name))
    return f"the 'format' {name[:MAX_FAULT_CHARS]!a}{where} is not supported"


def _one_of(_found: re.Match[str], schema: Schema) -> str:
    where = at_places(places(schema, "oneOf"))
    return f"'oneOf'{where} is supported only where its branches exclude each other; use 'anyOf'"


def _pattern(found: re.Match[str], schema: Schema) -> str:
    where = places(schema, "pattern", lambda value: str(value) in found.string)
    where += [
        f"{pointer}/patternProperties"
        for pointer, node in subschemas(schema)
        if any(name in found.string for name in node.get("patternProperties") or ())
    ]
    return f"a 'pattern'{at_places(where)} is not supported: {short(found.string)}"


def _remote(found: re.Match[str], schema: Schema) -> str:
    base = found[1]
    where = places(schema, "$ref", lambda value: str(value).startswith(base))
    where = where or places(schema, "$ref", lambda value: not str(value).startswith("#"))
    if not where and "$schema" in schema:
        return "'$schema' (at #/$schema) is not a known draft"
    return f"'$ref'{at_places(where)} is remote: only what is in the schema itself is used"


def _dangling(found: re.Match[str], schema: Schema) -> str:
    where = places(schema, "$ref", lambda value: str(value).endswith(found[1]))
    return f"'$ref'{at_places(where)} points to nothing"


def _wrong_type(found: re.Match[str], schema: Schema) -> str:
    where = places(schema, "type", lambda value: _names_type(value, found[1]))
    return f"'type'{at_places(where)} is not a type of JSON schema"


def _names_type(value: Any, name: str) -> bool:
    return value == name or (isinstance(value, list) and name in value)


def _wrong_value(found: re.Match[str], schema: Schema) -> str:
    keyword, wants = found["keyword"], found["wants"]
    if keyword == "schema":
        where = at_places(not_schemas(schema))
        return f"a schema inside of it{where} is neither an object nor a boolean"
    right = {"object": dict, "array": list, "string": str}.get(wants.split()[-1])
    where = places(schema, keyword, lambda value: right is None or not isinstance(value, right))
    return f"'{keyword}'{at_places(where)} has a value of the wrong type"


_DESCRIPTIONS: tuple[tuple[str, Callable[[re.Match[str], Schema], str]], ...] = (
    (r"Unimplemented keys: (\[.*?\])", _keywords),
    (r"Unknown format: ([^\n]*)", _format),
    (r"oneOf (constraints are not supported|not fully supported)", _one_of),
    (r".*(regex parse error|invalid regex|lookarounds not supported)", _pattern),
    (r"Resource '(.*?)' is not present", _remote),
    (r"Pointer '(.*?)' does not exist", _dangling),
    (r"Invalid type: ([^\n]*)", _wrong_type),
    (r"(?P<keyword>\S+) must be (?P<wants>an? \w+)", _wrong_value),
    (r"Expected (?P<wants>.+?) for '(?P<keyword>\w+)'", _wrong_value),
)
