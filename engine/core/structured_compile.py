"""From a grammar's source to a matcher that every request gets a copy of, or to a refusal."""

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import msgspec

from engine.core.structured_faults import RefusedGrammarError, schema_fault, short
from engine.core.structured_gaps import gaps, without_neutral
from engine.core.structured_schema import Schema, without_bad_patterns
from engine.core.structured_tokenizer import TokenizerBridge
from engine.wire.grammar_bounds import choices_of, schema_complaint, size_complaint
from engine.wire.messages import Grammar, GrammarKind

if TYPE_CHECKING:
    import numpy as np
    from llguidance import LLMatcher, LLTokenizer
    from numpy.typing import NDArray

WORD_BITS = 32
WHITESPACE = r"\x20|\x0A\x20{0,16}"
"""Between the parts of a JSON text: nothing, one space, or a new line and its indentation.

Unlimited, as llguidance has it, small models write white space until they run out of tokens.
"""
MAX_LEXER_STATES = 50_000
"""They take one or two kilobytes each, in every request."""


@dataclass(frozen=True, slots=True)
class CompiledGrammar:
    """A grammar at its beginning. Shared: a request works on a deep copy of the prototype."""

    prototype: "LLMatcher"
    first_mask: "NDArray[np.int32]"
    tokenizer: "LLTokenizer"
    vocab_size: int
    warnings: tuple[str, ...] = ()


def compile_grammar(bridge: TokenizerBridge, grammar: Grammar) -> CompiledGrammar:
    """Compile; blocks for milliseconds, seconds at worst.

    Raises:
        RefusedGrammarError: it is not valid, too large, or asks for what cannot be enforced.
        TokenizerError: no grammar can be followed with this model.
    """
    if complaint := size_complaint(grammar.source):
        raise RefusedGrammarError(f"the grammar cannot be used: {complaint}")
    match grammar.kind:
        case GrammarKind.JSON_SCHEMA:
            return _compile_schema(bridge, grammar)
        case GrammarKind.JSON_OBJECT:
            return _build(bridge, _from_schema({"type": "object"}, grammar))
        case GrammarKind.REGEX:
            return _compile_other(bridge, _from_regex(grammar.source), "regular expression")
        case GrammarKind.CHOICE:
            return _compile_other(bridge, _from_choices(grammar.source), "list of choices")
        case GrammarKind.LARK:
            return _compile_other(bridge, _from_lark(grammar.source), "grammar")


def compute_mask(
    matcher: "LLMatcher", tokenizer: "LLTokenizer", vocab_size: int
) -> "NDArray[np.int32]":
    """Return which tokens may come next, see `batch.TokenMask.mask`; releases the GIL."""
    import numpy as np  # noqa: PLC0415 - only engines that have grammars load it

    words = np.empty(-(-tokenizer.vocab_size // WORD_BITS), np.int32)
    matcher.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)
    if np.count_nonzero(words) == 1:
        _spell_out(words, matcher, tokenizer)
    if tokenizer.vocab_size > vocab_size:  # it knows tokens that the model cannot say
        words = words[: -(-vocab_size // WORD_BITS)].copy()
        if tail := vocab_size % WORD_BITS:
            words[-1] &= np.int32((1 << tail) - 1)
    return words


def _spell_out(words: "NDArray[np.int32]", matcher: "LLMatcher", tokenizer: "LLTokenizer") -> None:
    """Have a control token's name written letter by letter where it is the text that must follow.

    llguidance tokenizes such a text as a whole and takes the name for the token itself, which it
    then does not accept.
    """
    import numpy as np  # noqa: PLC0415

    bits = words.view(np.uint32)
    index = int(bits.nonzero()[0][0])
    only = index * WORD_BITS + int(bits[index]).bit_length() - 1
    if not tokenizer.is_special_token(only) or matcher.validate_tokens([only]):
        return
    text = matcher.compute_ff_bytes().decode("utf-8", "ignore")
    for token_id in tokenizer.greedy_tokenize(text)[:1]:
        bits[index] = 0
        bits[token_id // WORD_BITS] = 1 << token_id % WORD_BITS


def _build(bridge: TokenizerBridge, definition: str) -> CompiledGrammar:
    """Build the matcher of llguidance's own definition and its first mask.

    Raises:
        RefusedGrammarError: in llguidance's words.
    """
    from llguidance import LLMatcher, LLParserLimits  # noqa: PLC0415 - most engines never need it

    tokenizer = bridge.tokenizer()
    limits = LLParserLimits(max_lexer_states=MAX_LEXER_STATES, verbose_errors=False)
    matcher = LLMatcher(tokenizer, definition, log_level=0, limits=limits)
    if error := matcher.get_error():
        raise RefusedGrammarError(error)
    warnings = matcher.get_grammar_warnings()
    first_mask = compute_mask(matcher, tokenizer, bridge.vocab_size)
    if error := matcher.get_error():
        raise RefusedGrammarError(error)
    return CompiledGrammar(matcher, first_mask, tokenizer, bridge.vocab_size, tuple(warnings))


# ------------------------------------------------------------ JSON


def _compile_schema(bridge: TokenizerBridge, grammar: Grammar) -> CompiledGrammar:
    schema = without_neutral(_decode_schema(grammar.source))
    unkept = list(gaps(schema))
    try:
        built = _build(bridge, _from_schema(schema, grammar))
    except RefusedGrammarError as error:
        if not grammar.lenient:
            raise _refused(schema_fault(str(error), schema)) from error
        return _warned(_build_leniently(bridge, grammar, schema), unkept)
    if unkept and not grammar.lenient:
        raise _refused(unkept[0])
    return _warned(built, unkept)


def _build_leniently(bridge: TokenizerBridge, grammar: Grammar, schema: Schema) -> CompiledGrammar:
    schema, dropped = without_bad_patterns(schema, _pattern_fault)
    try:
        built = _build(bridge, _from_schema(schema, grammar, lenient=True))
    except RefusedGrammarError as error:
        raise _refused(schema_fault(str(error), schema)) from error
    ignored = [schema_fault(warning, schema) for warning in built.warnings]
    return replace(built, warnings=(*ignored, *dropped))


def _warned(built: CompiledGrammar, unkept: list[str]) -> CompiledGrammar:
    warnings = tuple(f"not enforced: {what}" for what in (*built.warnings, *unkept))
    return replace(built, warnings=warnings)


def _refused(fault: str) -> RefusedGrammarError:
    return RefusedGrammarError(f"the JSON schema cannot be used: {fault}")


def _decode_schema(source: str) -> Schema:
    try:
        schema = msgspec.json.decode(source)
    except (msgspec.DecodeError, RecursionError) as error:
        raise RefusedGrammarError(f"the JSON schema is not JSON: {short(str(error))}") from error
    if isinstance(schema, bool):
        if not schema:
            raise RefusedGrammarError("the JSON schema is false: nothing can match it")
        return {}
    if not isinstance(schema, dict):
        raise RefusedGrammarError("a JSON schema is an object or a boolean")
    if complaint := schema_complaint(schema):
        raise _refused(complaint)
    return schema


def _from_schema(schema: Schema, grammar: Grammar, *, lenient: bool = False) -> str:
    from llguidance import LLMatcher  # noqa: PLC0415

    text = msgspec.json.encode(schema).decode()
    if grammar.compact:
        return LLMatcher.grammar_from_json_schema(
            text, overrides={"whitespace_flexible": False, "lenient": lenient}
        )
    return LLMatcher.grammar_from_json_schema(
        text, overrides={"whitespace_pattern": WHITESPACE, "lenient": lenient}
    )


def _pattern_fault(pattern: str) -> str | None:
    """Return why a pattern of a schema cannot be enforced."""
    from llguidance import LLMatcher  # noqa: PLC0415

    schema = msgspec.json.encode({"type": "string", "pattern": pattern}).decode()
    error = LLMatcher.validate_grammar(LLMatcher.grammar_from_json_schema(schema))
    return short(error) if error else None


# ------------------------------------------------------------ other kinds


def _compile_other(bridge: TokenizerBridge, definition: str, what: str) -> CompiledGrammar:
    try:
        return _build(bridge, definition)
    except RefusedGrammarError as error:
        raise RefusedGrammarError(f"the {what} cannot be used: {short(str(error))}") from error


def _from_regex(source: str) -> str:
    r"""Return the definition of a regular expression; `\d` and `\w` are ASCII, as in a schema."""
    from llguidance import LLMatcher, regex_to_lark  # noqa: PLC0415

    return LLMatcher.grammar_from_lark(f"start: /{regex_to_lark(source, 'dw')}/")


def _from_choices(source: str) -> str:
    from llguidance import LLMatcher  # noqa: PLC0415

    try:
        choices = choices_of(source)
    except ValueError as error:
        raise RefusedGrammarError(str(error)) from error
    literals = (json.dumps(choice).replace("\x7f", "\\u007f") for choice in choices)
    return LLMatcher.grammar_from_lark("start: " + " | ".join(dict.fromkeys(literals)))


def _from_lark(source: str) -> str:
    from llguidance import LLMatcher  # noqa: PLC0415

    if "::=" in source:
        text = "its rules are written as in GBNF (name ::= ...); Lark is taken (name: ...)"
        raise RefusedGrammarError(f"the grammar cannot be used: {text}")
    return LLMatcher.grammar_from_lark(source)
