"""Grammars that cannot be followed are refused up front, with the fault and where it is."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from engine.wire.messages import GrammarKind
from tests.engine.core.random_writer import Compiler, RandomWriter
from tests.engine.core.schemas import NO_SCHEMAS, UNSUPPORTED, Schema
from tests.tiny_model import make_tokenizer


@pytest.fixture(scope="module")
def compiler() -> Iterator[Compiler]:
    compiler = Compiler(make_tokenizer, make_tokenizer().get_vocab_size(), (2,))
    yield compiler
    compiler.grammars.close()


@pytest.fixture(scope="module")
def writer() -> RandomWriter:
    tokenizer = make_tokenizer()
    return RandomWriter(tokenizer, tokenizer.get_vocab_size(), (2,))


def refusal(compiler: Compiler, kind: GrammarKind, source: str, *, lenient: bool = False) -> str:
    grammar = compiler.compile(kind, source, lenient=lenient)
    assert not grammar.is_ready
    assert grammar.fault is not None
    assert grammar.fault.code == "invalid_grammar"
    message = grammar.fault.message
    assert message.isascii()
    assert "\n" not in message
    assert len(message) < 700
    return message


@pytest.mark.parametrize("keyword", UNSUPPORTED)
def test_an_unsupported_keyword_is_refused_with_its_name_and_place(
    compiler: Compiler, keyword: str
):
    schema, place = UNSUPPORTED[keyword]
    message = refusal(compiler, GrammarKind.JSON_SCHEMA, json.dumps(schema))
    assert f"'{keyword.replace('Properties', '')}" in message
    assert place in message


@pytest.mark.parametrize("keyword", UNSUPPORTED)
def test_the_place_is_right_deep_inside(compiler: Compiler, keyword: str):
    schema, place = UNSUPPORTED[keyword]
    inner = {key: value for key, value in schema.items() if key != "$schema"}
    nested: Schema = {
        "type": "object",
        "properties": {
            keyword: {"type": "null"},  # a name, no keyword
            "a/b ~": {"anyOf": [{"type": "null"}, inner]},
        },
        "required": [keyword, "a/b ~"],
    }
    message = refusal(compiler, GrammarKind.JSON_SCHEMA, json.dumps(nested))
    assert f"#/properties/a~1b%20~0/anyOf/1{place[1:]}" in message
    assert f"#/properties/{keyword})" not in message


@pytest.mark.parametrize("keyword", sorted(UNSUPPORTED.keys() - {"$ref"}))
def test_best_effort_ignores_unsupported_keywords_and_says_so(
    compiler: Compiler, writer: RandomWriter, keyword: str
):
    schema, place = UNSUPPORTED[keyword]
    grammar = compiler.schema({"type": "object", "properties": {"p": schema}}, lenient=True)

    assert grammar.fault is None
    warnings = " ".join(grammar.warnings)
    assert "not enforced" in warnings
    assert f"#/properties/p{place[1:]}" in warnings
    assert warnings.isascii()
    assert isinstance(json.loads(writer.write(grammar, 0).text), dict)


def test_best_effort_keeps_what_can_be_kept(compiler: Compiler, writer: RandomWriter):
    schema = {"type": "array", "items": {"const": 7}, "uniqueItems": True, "minItems": 2}
    for seed in range(3):
        written = writer.write(compiler.schema(schema, lenient=True), seed)
        assert set(json.loads(written.text)) == {7}


def test_best_effort_of_a_supported_schema_has_no_warnings(compiler: Compiler):
    assert compiler.schema({"type": "integer"}, lenient=True).warnings == ()


def test_remote_references_are_refused_also_by_best_effort(compiler: Compiler):
    for reference in ("https://example.org/s.json", "other.json#/x", "file:///etc/passwd"):
        schema = json.dumps({"items": {"$ref": reference}})
        message = refusal(compiler, GrammarKind.JSON_SCHEMA, schema, lenient=True)
        assert "remote" in message
        assert "#/items/$ref" in message


@pytest.mark.parametrize(
    ("name", "lenient"),
    [
        *((name, False) for name in NO_SCHEMAS),
        # a pattern that cannot be read is ignored by best effort
        *((name, True) for name in NO_SCHEMAS if name != "a pattern that is open"),
    ],
)
def test_what_is_no_schema_is_refused(compiler: Compiler, name: str, lenient: bool):
    schema, says = NO_SCHEMAS[name]
    message = refusal(compiler, GrammarKind.JSON_SCHEMA, json.dumps(schema), lenient=lenient)
    assert says in message


GAPS: dict[str, tuple[Any, str]] = {
    "keys that may come twice": (
        {"type": "object", "minProperties": 2, "additionalProperties": {"type": "null"}},
        "#/minProperties",
    ),
    "a bound beyond float64": ({"type": "integer", "maximum": 2**60}, "#/maximum"),
    "a constant beyond float64": ({"items": {"const": 2**53 + 1}}, "#/items/const"),
    "an inner schema that takes the name of the outer one": (
        {"$id": "https://example.org/s", "items": {"$id": "https://example.org/s#"}},
        "#/items/$id",
    ),
    "an inner schema with an empty name": ({"items": {"$id": ""}}, "#/items/$id"),
    "an enum beyond float64": ({"enum": [1, {"a": [-(2**60)]}]}, "#/enum"),
}


@pytest.mark.parametrize("name", GAPS)
def test_what_the_compiler_would_not_keep_is_refused_or_warned_of(compiler: Compiler, name: str):
    schema, place = GAPS[name]
    assert place in refusal(compiler, GrammarKind.JSON_SCHEMA, json.dumps(schema))
    lenient = compiler.schema(schema, lenient=True)
    assert lenient.fault is None
    assert place in " ".join(lenient.warnings)


def test_the_bounds_of_safe_integers_are_taken(compiler: Compiler):
    schema = {"type": "integer", "minimum": -(2**53) + 1, "maximum": 2**53 - 1}
    assert compiler.schema(schema).fault is None


def test_schemas_that_are_too_large_are_refused_before_they_are_compiled(compiler: Compiler):
    deep: Schema = {"type": "null"}
    for _ in range(500):
        deep = {"items": deep}
    cases = {
        "levels deep": json.dumps(deep),
        "5000 values": json.dumps({"enum": list(range(5001))}),
        "262144": json.dumps({"description": "x" * 300_000}),
        "is not JSON": '{"type": ',
        "nested": "[" * 200_000,
    }
    for says, source in cases.items():
        message = refusal(compiler, GrammarKind.JSON_SCHEMA, source)
        assert says in message or "not JSON" in message


def test_options_of_the_compiler_in_a_schema_are_not_honoured(compiler: Compiler):
    schema = {"x-guidance": {"lenient": True}, "type": "array", "uniqueItems": True}
    assert "uniqueItems" in refusal(compiler, GrammarKind.JSON_SCHEMA, json.dumps(schema))


@pytest.mark.parametrize(
    ("kind", "source", "says"),
    [
        (GrammarKind.REGEX, "(?=a)b", "look-around"),
        (GrammarKind.REGEX, "(a)\\1", "backreferences"),
        (GrammarKind.REGEX, "(", "unclosed group"),
        (GrammarKind.REGEX, "\u00e9(", "unclosed group"),
        (GrammarKind.REGEX, "[^\\s\\S]", "nothing can match it"),
        (GrammarKind.REGEX, "(" * 5000, "regular expression"),
        (GrammarKind.CHOICE, "[]", "1 to 5000 choices"),
        (GrammarKind.CHOICE, '["a", 1]', "a list of strings"),
        (GrammarKind.CHOICE, "{", "a list of strings"),
        (GrammarKind.LARK, "", "mpty"),
        (GrammarKind.LARK, "start: other", 'unknown name: "other"'),
        (GrammarKind.LARK, 'x: "a"', "no start rule"),
        (GrammarKind.LARK, "start: start", "nothing can match it"),
        (GrammarKind.LARK, 'root ::= "a"', "Lark"),
        (GrammarKind.LARK, "start: " + "(" * 3000, "nested"),
    ],
)
def test_other_grammars_are_refused_with_the_fault(
    compiler: Compiler, kind: GrammarKind, source: str, says: str
):
    assert says in refusal(compiler, kind, source)
