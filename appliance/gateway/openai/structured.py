"""What the output must match: `response_format`, `structured_outputs` and their older spellings.

Only what is cheap to see is checked here. The engine compiles the grammar and may still refuse it.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from appliance.gateway.openai.checks import (
    Check,
    array,
    boolean,
    check_length,
    json_object,
    refused,
    string,
)
from appliance.gateway.openai.errors import ApiError, invalid, missing, wrong_type
from engine.wire.grammar_bounds import MAX_CHOICES, schema_complaint, size_complaint
from engine.wire.messages import Grammar, GrammarKind

FORMAT_TYPES = ("text", "json_object", "json_schema")
SCHEMA_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")

Kind = Callable[[Any, str], Grammar | None]


def response_format(value: Any, param: str) -> Grammar | None:
    """OpenAI's: text, any JSON object, or a JSON schema, best effort unless it is `strict`."""
    fields = json_object(value, param)
    if fields.get("type") is None:
        raise missing(f"{param}.type")
    kind = string(fields["type"], f"{param}.type")
    if kind not in FORMAT_TYPES:
        allowed = ", ".join(FORMAT_TYPES)
        raise invalid(f"{param}.type", f"'{param}.type' must be one of: {allowed}.")
    if kind == "text":
        return None
    if kind == "json_schema":
        return _named_schema(fields.get("json_schema"), f"{param}.json_schema")
    if fields.get("schema") is not None:  # as llama.cpp and others have it
        return _schema(fields["schema"], f"{param}.schema", lenient=True)
    return Grammar(kind=GrammarKind.JSON_OBJECT)


def _named_schema(value: Any, param: str) -> Grammar:
    if value is None:
        raise missing(param)
    fields = json_object(value, param)
    if fields.get("name") is None:
        raise missing(f"{param}.name")
    if not SCHEMA_NAME.fullmatch(string(fields["name"], f"{param}.name")):
        message = f"'{param}.name' must be 1 to 64 letters, digits, underscores or hyphens."
        raise invalid(f"{param}.name", message)
    if fields.get("description") is not None:
        string(fields["description"], f"{param}.description")
    strict = fields.get("strict")
    if fields.get("schema") is None:
        raise missing(f"{param}.schema")
    lenient = strict is None or not boolean(strict, f"{param}.strict")
    return _schema(fields["schema"], f"{param}.schema", lenient=lenient)


def _schema(value: Any, param: str, *, lenient: bool = False) -> Grammar:
    """Check a JSON schema, which may also be written as a string of JSON."""
    if type(value) is str:
        value = _decoded(value, param)
    schema = json_object(value, param)
    _accept(schema_complaint(schema), param)
    grammar = Grammar(
        kind=GrammarKind.JSON_SCHEMA,
        source=msgspec.json.encode(schema).decode(),
        lenient=lenient,
    )
    _accept(size_complaint(grammar.source), param)
    return grammar


def _decoded(text: str, param: str) -> Any:
    _accept(size_complaint(text), param)
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise invalid(param, f"'{param}' is a string that is not JSON.") from error


def _regex(value: Any, param: str) -> Grammar:
    return _text(GrammarKind.REGEX, value, param)


def _lark(value: Any, param: str) -> Grammar:
    return _text(GrammarKind.LARK, value, param)


def _text(kind: GrammarKind, value: Any, param: str) -> Grammar:
    source = string(value, param)
    if not source:
        raise ApiError("empty_string", f"'{param}' must not be empty.", param=param)
    _accept(size_complaint(source), param)
    return Grammar(kind=kind, source=source)


def _choice(value: Any, param: str) -> Grammar:
    choices = array(value, param)
    if not choices:
        raise ApiError("empty_array", f"'{param}' must not be empty.", param=param)
    check_length(choices, param, MAX_CHOICES)
    if not all(type(choice) is str for choice in choices):
        raise wrong_type(param, "an array of strings")
    source = msgspec.json.encode(choices).decode()
    _accept(size_complaint(source), param)
    return Grammar(kind=GrammarKind.CHOICE, source=source)


def _any_json_object(value: Any, param: str) -> Grammar | None:
    return Grammar(kind=GrammarKind.JSON_OBJECT) if boolean(value, param) else None


def _accept(complaint: str | None, param: str) -> None:
    if complaint:
        raise invalid(param, f"'{param}' cannot be used: {complaint}.")


KINDS: dict[str, Kind] = {
    "json": _schema,
    "regex": _regex,
    "choice": _choice,
    "grammar": _lark,
    "json_object": _any_json_object,
}
OPTIONS: dict[str, Check] = {
    "disable_any_whitespace": boolean,
    "disable_fallback": boolean,  # there is one compiler
    "disable_additional_properties": refused,
    "whitespace_pattern": refused,
    "structural_tag": refused,
}


def structured_outputs(value: Any, param: str) -> Grammar:
    """Check vLLM's way to say it: exactly one kind, and options."""
    given = {name: item for name, item in json_object(value, param).items() if item is not None}
    if not given.keys() <= KINDS.keys() | OPTIONS.keys():
        raise ApiError("unknown_parameter", f"'{param}' has an unknown field.", param=param)
    options = {
        name: OPTIONS[name](given[name], f"{param}.{name}") for name in given if name in OPTIONS
    }
    grammars = {
        name: grammar
        for name, kind in KINDS.items()
        if name in given and (grammar := kind(given[name], f"{param}.{name}")) is not None
    }
    if not grammars:
        raise invalid(param, f"'{param}' must have one of: {', '.join(KINDS)}.")
    grammar = _only({f"{param}.{name}": grammar for name, grammar in grammars.items()})
    if options.get("disable_any_whitespace"):
        return msgspec.structs.replace(grammar, compact=True)
    return grammar


STRUCTURED_FIELDS: dict[str, Check] = {
    "response_format": response_format,
    "structured_outputs": structured_outputs,
    # older names of the kinds, as vLLM had them
    "guided_json": _schema,
    "guided_regex": _regex,
    "guided_choice": _choice,
    "guided_grammar": _lark,
    "guided_whitespace_pattern": refused,
}
"""Checked, each is a `Grammar`, or None when it constrains nothing."""


def grammar_of(fields: Mapping[str, Any]) -> Grammar | None:
    """Return the grammar that checked request fields ask for.

    Raises:
        ApiError: more than one field asks for one.
    """
    grammars = {name: fields[name] for name in STRUCTURED_FIELDS if fields.get(name) is not None}
    return _only(grammars) if grammars else None


def _only(grammars: Mapping[str, Grammar]) -> Grammar:
    if len(grammars) > 1:
        first, second, *_ = grammars
        raise invalid(second, f"'{first}' and '{second}' exclude each other: give one of them.")
    return next(iter(grammars.values()))
