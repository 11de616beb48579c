"""300 JSON schemas: whatever a random model writes within their masks parses and validates."""

import json
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.checkpoint.checkpoint import open_checkpoint
from engine.wire.messages import GrammarKind
from tests.engine.core.random_schemas import random_document
from tests.engine.core.random_writer import Compiler, RandomWriter, allowed_tokens, validate
from tests.engine.core.schemas import HAND_WRITTEN, Schema
from tests.tiny_model import make_tokenizer

TINY_EOS = (2, 0)
NUM_GENERATED = 300 - len(HAND_WRITTEN)


def all_schemas() -> dict[str, Schema]:
    rng = random.Random(2)
    generated = {f"generated {index}": random_document(rng) for index in range(NUM_GENERATED)}
    return HAND_WRITTEN | generated


@pytest.fixture(scope="module")
def tiny() -> Iterator[tuple[Compiler, RandomWriter]]:
    tokenizer = make_tokenizer()
    vocab_size = tokenizer.get_vocab_size()
    compiler = Compiler(make_tokenizer, vocab_size, TINY_EOS)
    yield compiler, RandomWriter(tokenizer, vocab_size, TINY_EOS)
    compiler.grammars.close()


@pytest.fixture(scope="module")
def smollm2(smollm2_path: Path) -> Iterator[tuple[Compiler, RandomWriter]]:
    checkpoint = open_checkpoint(smollm2_path)
    vocab_size, eos = checkpoint.config.vocab_size, checkpoint.eos_token_ids
    compiler = Compiler(checkpoint.tokenizer, vocab_size, eos)
    yield compiler, RandomWriter(checkpoint.tokenizer(), vocab_size, eos)
    compiler.grammars.close()


def write_all(
    compiler: Compiler, writer: RandomWriter, schemas: dict[str, Schema], num_seeds: int
) -> Counter[str]:
    """Write each schema's outputs; return how many were complete and how many cut."""
    counts: Counter[str] = Counter()
    for name, schema in schemas.items():
        for seed in range(num_seeds):
            grammar = compiler.schema(schema)
            assert grammar.fault is None, (name, grammar.fault)
            assert grammar.warnings == ()
            written = writer.write(grammar, seed, calm_tokens=seed * 20)
            counts["complete" if written.is_complete else "cut"] += 1
            if written.is_complete:
                try:
                    validate(written.text, schema)
                except Exception as error:
                    raise AssertionError(f"{name}: {written.text!r}") from error
    return counts


def test_every_finished_output_of_300_schemas_parses_and_validates(
    tiny: tuple[Compiler, RandomWriter],
):
    schemas = all_schemas()
    counts = write_all(*tiny, schemas, num_seeds=3)

    assert len(schemas) == 300
    assert counts.total() == 900
    assert counts["complete"] > 0.95 * counts.total()


def test_the_tokens_of_smollm2_write_valid_json_too(smollm2: tuple[Compiler, RandomWriter]):
    schemas = dict(list(all_schemas().items())[::2])
    counts = write_all(*smollm2, schemas, num_seeds=1)

    assert counts["complete"] > 0.95 * len(schemas)


def test_what_is_cut_by_the_token_limit_is_the_beginning_of_something_valid(
    tiny: tuple[Compiler, RandomWriter],
):
    compiler, writer = tiny
    digits = compiler.schema({"type": "array", "items": {"type": "number"}, "minItems": 100})
    written = writer.write(digits, seed=0, max_tokens=50)  # every token is accepted

    assert not written.is_complete
    assert not digits.is_finished
    assert written.text.startswith("[")


def test_white_space_between_the_parts_of_a_json_text_is_bounded(
    tiny: tuple[Compiler, RandomWriter],
):
    compiler, writer = tiny
    schema = HAND_WRITTEN["person"] | {"x-guidance": {"whitespace_pattern": "[ \n\t]*"}}

    class SpaceLover(RandomWriter):
        def __init__(self) -> None:
            super().__init__(writer.tokenizer, writer.vocab_size, TINY_EOS)
            texts = [self.tokenizer.decode([i]) for i in range(self.vocab_size)]
            self._keenness += [100.0 * (t != "" and not t.strip()) for t in texts]

    text = SpaceLover().write(compiler.schema(schema), seed=1, calm_tokens=0).text
    parts = json.loads(text)
    assert set(parts) == {"name", "age"}
    longest = max(len(run) for run in "".join(c if c in " \n" else "x" for c in text).split("x"))
    assert 2 <= longest <= 17


def test_a_compact_grammar_has_no_white_space(tiny: tuple[Compiler, RandomWriter]):
    compiler, writer = tiny
    for seed in range(5):
        source = json.dumps(HAND_WRITTEN["tree"])
        grammar = compiler.compile(GrammarKind.JSON_SCHEMA, source, compact=True)
        text = writer.write(grammar, seed).text
        assert text == json.dumps(json.loads(text), separators=(",", ":"))


def test_any_json_object_is_an_object(tiny: tuple[Compiler, RandomWriter]):
    compiler, writer = tiny
    for seed in range(10):
        written = writer.write(compiler.compile(GrammarKind.JSON_OBJECT), seed)
        assert written.is_complete
        assert isinstance(json.loads(written.text), dict)


def test_properties_come_in_the_order_of_the_schema(tiny: tuple[Compiler, RandomWriter]):
    compiler, writer = tiny
    schema = {
        "type": "object",
        "properties": {name: {"type": "null"} for name in ("z", "m", "a")},
        "required": ["a", "m", "z"],
        "additionalProperties": False,
    }
    assert list(json.loads(writer.write(compiler.schema(schema), 0).text)) == ["z", "m", "a"]


def test_properties_that_are_not_described_are_allowed_unless_the_schema_says_so(
    tiny: tuple[Compiler, RandomWriter],
):
    compiler, writer = tiny
    schema = {"type": "object", "properties": {"a": {"type": "null"}}, "required": ["a"]}
    outputs = [json.loads(writer.write(compiler.schema(schema), s).text) for s in range(10)]
    assert any(len(output) > 1 for output in outputs)
    assert all("a" in output for output in outputs)


def test_keywords_that_forbid_nothing_are_no_reason_to_refuse(
    tiny: tuple[Compiler, RandomWriter],
):
    compiler, writer = tiny
    schema = {
        "type": "object",
        "propertyNames": {"type": "string"},
        "additionalProperties": {"type": "array", "uniqueItems": False, "items": {"const": 1}},
        "dependentRequired": {},
        "unevaluatedProperties": True,
    }
    grammar = compiler.schema(schema)
    assert grammar.fault is None
    validate(writer.write(grammar, 0).text, schema)


def test_control_tokens_are_never_allowed_but_the_end_tokens(
    tiny: tuple[Compiler, RandomWriter],
):
    compiler, writer = tiny
    grammar = compiler.schema({"type": "string"})
    first = set(allowed_tokens(grammar.mask(), writer.vocab_size))
    assert not first & {0, 1, 2}
    quote = writer.tokenizer.token_to_id('"')
    assert grammar.accept(quote) is None
    assert not set(allowed_tokens(grammar.mask(), writer.vocab_size)) & {0, 1, 2}
    assert grammar.accept(quote) is None
    assert grammar.is_finished
    assert set(allowed_tokens(grammar.mask(), writer.vocab_size)) == {0, 2}
