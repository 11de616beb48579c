"""Requests follow their grammars: mask, choose, accept."""

import json
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from engine.core.batch import RequestGrammar
from engine.wire.messages import GrammarKind
from tests.engine.core.random_writer import Compiler, RandomWriter, allowed_tokens
from tests.tiny_model import make_tokenizer

TOKENIZER = make_tokenizer()
VOCAB_SIZE = TOKENIZER.get_vocab_size()
EOS = (2, 0)
WRITER = RandomWriter(TOKENIZER, VOCAB_SIZE, EOS)


@pytest.fixture
def compiler() -> Iterator[Compiler]:
    compiler = Compiler(make_tokenizer, VOCAB_SIZE, EOS)
    yield compiler
    compiler.grammars.close()


def accept_text(grammar: RequestGrammar, text: str) -> None:
    for token_id in TOKENIZER.encode(text).ids:
        assert grammar.accept(token_id) is None


def allowed_texts(grammar: RequestGrammar) -> set[str]:
    return {
        TOKENIZER.id_to_token(i) if i in EOS else TOKENIZER.decode([i])
        for i in allowed_tokens(grammar.mask(), VOCAB_SIZE)
    }


# ------------------------------------------------------------ kinds


def test_a_regular_expression_is_matched_as_a_whole(compiler: Compiler):
    for seed in range(10):
        written = WRITER.write(compiler.compile(GrammarKind.REGEX, "[a-c]{2}-\\d+"), seed)
        assert re.fullmatch("[a-c]{2}-\\d+", written.text)


def test_every_choice_can_be_written_and_nothing_else(compiler: Compiler):
    choices = [
        "yes",
        "no",
        'q"uo\\te',
        "two\nlines",
        "\u4f60\u597d \U0001f600",
        "\x7f",
        "a/b",
        "ye",
    ]
    source = json.dumps(choices)
    written = {
        WRITER.write(compiler.compile(GrammarKind.CHOICE, source), seed).text for seed in range(80)
    }
    assert written == set(choices)


@pytest.mark.parametrize("text", ["<|im_end|>", "a<|im_start|>b", "<|endoftext|><|im_end|>"])
def test_the_name_of_a_control_token_is_text_like_any_other(compiler: Compiler, text: str):
    grammar = compiler.compile(GrammarKind.CHOICE, json.dumps([text]))
    spelled = ""
    while not grammar.is_finished:
        token_id = int(allowed_tokens(grammar.mask(), VOCAB_SIZE)[-1])
        assert grammar.accept(token_id) is None
        spelled += TOKENIZER.decode([token_id], skip_special_tokens=False)
    assert spelled == text


def test_the_empty_text_can_be_a_choice(compiler: Compiler):
    grammar = compiler.compile(GrammarKind.CHOICE, '["", "a"]')
    assert allowed_texts(grammar) == {"a", "<|endoftext|>", "<|im_end|>"}


def test_a_lark_grammar_is_followed(compiler: Compiler):
    source = 'start: "<" body ">"\nbody: item ("," item)*\nitem: /[a-z]{1,3}/'
    for seed in range(10):
        written = WRITER.write(compiler.compile(GrammarKind.LARK, source), seed)
        if written.is_complete:
            assert written.text[0] + written.text[-1] == "<>"
            assert all(1 <= len(item) <= 3 for item in written.text[1:-1].split(","))


# ------------------------------------------------------------ following


def test_any_of_the_end_tokens_ends_a_complete_output(compiler: Compiler):
    for eos in EOS:
        grammar = compiler.compile(GrammarKind.REGEX, "ab?")
        assert allowed_texts(grammar) <= {"a", "ab"}
        accept_text(grammar, "a")
        assert not grammar.is_finished
        assert {"<|endoftext|>", "<|im_end|>"} < allowed_texts(grammar)
        assert grammar.accept(eos) is None
        assert grammar.is_finished


def test_a_finished_grammar_goes_on_to_allow_end_tokens(compiler: Compiler):
    grammar = compiler.compile(GrammarKind.REGEX, "a")
    accept_text(grammar, "a")
    for _ in range(3):  # a request that ignores end tokens
        assert grammar.is_finished
        assert allowed_texts(grammar) == {"<|endoftext|>", "<|im_end|>"}
        assert grammar.accept(2) is None


def test_the_mask_stays_until_a_token_is_accepted(compiler: Compiler):
    grammar = compiler.compile(GrammarKind.REGEX, "[ab]{3}")
    first = grammar.mask()
    grammar.begin_mask()
    assert (grammar.mask() == first).all()
    accept_text(grammar, "a")
    accept_text(grammar, "b")
    accept_text(grammar, "a")
    assert (grammar.mask() != first).any()


def test_a_token_that_is_not_allowed_fails_that_request_alone(compiler: Compiler):
    bad, good = (compiler.compile(GrammarKind.REGEX, "[ab]{3}") for _ in range(2))
    accept_text(bad, "a")
    wrong = TOKENIZER.token_to_id("#")
    assert bad.accept(wrong) == "the sampled token is not allowed by the grammar"
    assert bad.accept(TOKENIZER.token_to_id("a")) is not None
    assert not bad.is_finished
    assert allowed_texts(bad) == {"<|endoftext|>", "<|im_end|>"}
    assert bad.accept(2) is not None

    assert WRITER.write(good, 0).is_complete
    assert WRITER.write(compiler.compile(GrammarKind.REGEX, "[ab]{3}"), 0).is_complete


@pytest.mark.parametrize("token_id", [VOCAB_SIZE, 10**9])
def test_a_token_that_does_not_exist_fails_that_request_alone(compiler: Compiler, token_id: int):
    grammar = compiler.compile(GrammarKind.REGEX, "a+")
    assert grammar.accept(token_id) is not None


def test_a_grammar_that_becomes_too_complex_fails_that_request_alone(compiler: Compiler):
    branches = range(2500)
    source = "start: " + " | ".join(f'"x" "y" rule{i}' for i in branches) + "\n"
    source += "\n".join(f'rule{i}: "z" /[a-z]+{i}/' for i in branches)
    grammar = compiler.compile(GrammarKind.LARK, source)
    other = compiler.compile(GrammarKind.REGEX, "[ab]{3}")
    assert allowed_texts(grammar) >= {"x"}
    assert grammar.accept(TOKENIZER.token_to_id("x")) == "the grammar became too complex to follow"
    assert grammar.accept(2) == "the grammar became too complex to follow"  # no end, but a fault
    assert WRITER.write(other, 0).is_complete


def test_a_first_mask_that_costs_much_is_computed_with_the_grammar(compiler: Compiler):
    grammar = compiler.compile(GrammarKind.REGEX, "a{100000}")
    written = WRITER.write(grammar, 0, max_tokens=5)
    assert written.text == "aaaaa"


def test_requests_of_one_grammar_are_each_at_their_own_place(compiler: Compiler):
    first, second, third = (compiler.compile(GrammarKind.REGEX, "abc|xyz") for _ in range(3))
    accept_text(first, "ab")
    accept_text(second, "x")
    assert allowed_texts(first) == {"c"}
    assert "y" in allowed_texts(second)
    assert {"a", "x"} <= allowed_texts(third)


@pytest.mark.parametrize("vocab_size", [VOCAB_SIZE - 60, VOCAB_SIZE - 1, VOCAB_SIZE + 1, 640])
def test_logits_may_be_narrower_or_wider_than_the_tokenizer(vocab_size: int):
    compiler = Compiler(make_tokenizer, vocab_size, EOS)
    writer = RandomWriter(TOKENIZER, vocab_size, EOS)
    schema = {"type": "array", "items": {"type": "string"}, "minItems": 3}
    for seed in range(5):  # `write` asserts that no token beyond the logits or tokenizer is allowed
        written = writer.write(compiler.schema(schema), seed)
        assert isinstance(json.loads(written.text), list)
    compiler.grammars.close()


def test_a_model_without_end_tokens_has_no_structured_output():
    compiler = Compiler(make_tokenizer, VOCAB_SIZE, ())
    grammar = compiler.schema({})
    assert grammar.fault is not None
    assert grammar.fault.code == "invalid_request"
    assert "this model" in grammar.fault.message
    compiler.grammars.close()


# ------------------------------------------------------------ threads


def test_masks_that_are_computed_ahead_change_nothing(compiler: Compiler):
    schema = {"type": "array", "items": {"type": "object"}, "minItems": 2, "maxItems": 4}

    class Hasty:
        """Asks for the mask several times before it takes it, and once more too late."""

        def __init__(self, grammar: RequestGrammar) -> None:
            self._grammar = grammar
            self.mask = grammar.mask

        def begin_mask(self) -> None:
            for _ in range(3):
                self._grammar.begin_mask()

        def accept(self, token_id: int) -> str | None:
            self._grammar.begin_mask()
            complaint = self._grammar.accept(token_id)
            self._grammar.begin_mask()
            return complaint

    def write(seed: int) -> tuple[str, str]:
        hasty = WRITER.write(Hasty(compiler.schema(schema)), seed)  # type: ignore[arg-type]
        return hasty.text, WRITER.write(compiler.schema(schema), seed).text

    with ThreadPoolExecutor(4) as pool:
        pairs = list(pool.map(write, range(24)))
    assert all(hasty == plain for hasty, plain in pairs)
    assert len(set(pairs)) > 12


def test_one_matcher_is_never_in_two_threads(compiler: Compiler):
    """llguidance raises `Already borrowed` when it is."""
    grammar = compiler.compile(GrammarKind.REGEX, "a{100000}")  # each mask takes milliseconds
    token_id = TOKENIZER.token_to_id("a")
    faults: list[BaseException] = []
    done = threading.Event()

    def pester() -> None:
        while not done.is_set():
            try:
                grammar.begin_mask()
                grammar.mask()
            except BaseException as error:  # noqa: BLE001
                faults.append(error)

    threads = [threading.Thread(target=pester) for _ in range(3)]
    for thread in threads:
        thread.start()
    complaints = [grammar.accept(token_id) for _ in range(20)]
    done.set()
    for thread in threads:
        thread.join()
    assert faults == []
    assert complaints == [None] * 20
