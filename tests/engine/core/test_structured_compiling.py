"""Grammars are compiled once, off the loop, within a deadline, and kept within bounds."""

import gc
import itertools
import json
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest
from tokenizers import Tokenizer

from engine.core import structured, structured_pool
from engine.core.batch import RequestGrammar
from engine.core.structured import GrammarCounts
from engine.core.structured_compile import CompiledGrammar
from engine.core.structured_faults import RefusedGrammarError
from engine.core.structured_pool import Compilation, CompilePool
from engine.wire.messages import Grammar, GrammarKind, RequestError
from tests.engine.core.random_writer import Compiler, RandomWriter
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


class HeldTokenizer:
    """Builds the tokenizer when the test says so: until then compilations hang."""

    def __init__(self) -> None:
        self.let_go = threading.Event()
        self.num_built = 0

    def __call__(self) -> Tokenizer:
        assert self.let_go.wait(30)
        self.num_built += 1
        return make_tokenizer()


@pytest.fixture
def held() -> Iterator[HeldTokenizer]:
    held = HeldTokenizer()
    yield held
    held.let_go.set()


def regex(pattern: str) -> Grammar:
    return Grammar(kind=GrammarKind.REGEX, source=pattern)


def accept_text(grammar: RequestGrammar, text: str) -> None:
    for token_id in TOKENIZER.encode(text).ids:
        assert grammar.accept(token_id) is None


def test_start_does_not_wait_for_the_tokenizer_or_the_compilation(held: HeldTokenizer):
    compiler = Compiler(held, VOCAB_SIZE, EOS)
    grammar = compiler.start(regex("a"))
    assert not grammar.is_ready
    assert grammar.fault is None
    held.let_go.set()
    compiler.wait(grammar)
    assert grammar.is_ready
    compiler.grammars.close()


def test_32_requests_with_one_schema_compile_once(held: HeldTokenizer):
    compiler = Compiler(held, VOCAB_SIZE, EOS)
    source = json.dumps({"type": "object", "properties": {"a": {"type": "integer"}}})
    grammar = Grammar(kind=GrammarKind.JSON_SCHEMA, source=source)
    with ThreadPoolExecutor(8) as pool:
        started = list(pool.map(lambda _: compiler.start(grammar), range(32)))
    held.let_go.set()
    compiler.wait(*started)
    later = compiler.start(grammar)

    assert later.is_ready
    assert compiler.grammars.counts == GrammarCounts(compiled=1, refused=0)
    assert held.num_built == 1
    texts = {WRITER.write(request, seed).text for seed, request in enumerate(started)}
    assert len(texts) > 8
    compiler.grammars.close()


def test_the_same_source_with_another_kind_or_flag_is_another_grammar(compiler: Compiler):
    source = '["a"]'
    for kind, lenient, compact in itertools.product(
        (GrammarKind.CHOICE, GrammarKind.REGEX), (False, True), (False, True)
    ):
        compiler.compile(kind, source, lenient=lenient, compact=compact)
    assert compiler.grammars.num_kept == 8
    assert {WRITER.write(compiler.compile(GrammarKind.CHOICE, source), 0).text} == {"a"}
    assert WRITER.write(compiler.compile(GrammarKind.REGEX, source), 0).text in {'"', "a"}


def test_no_more_than_a_bounded_number_of_grammars_is_kept(compiler: Compiler):
    for index in range(structured.MAX_KEPT_GRAMMARS + 10):
        compiler.compile(GrammarKind.REGEX, f"{index}")
        compiler.compile(GrammarKind.REGEX, "always")
    assert compiler.grammars.num_kept == structured.MAX_KEPT_GRAMMARS
    num_compiled = structured.MAX_KEPT_GRAMMARS + 11
    assert compiler.grammars.counts.compiled == num_compiled

    compiler.compile(GrammarKind.REGEX, "always")
    compiler.compile(GrammarKind.REGEX, f"{structured.MAX_KEPT_GRAMMARS + 9}")
    assert compiler.grammars.counts.compiled == num_compiled
    compiler.compile(GrammarKind.REGEX, "0")
    assert compiler.grammars.counts.compiled == num_compiled + 1


def test_refusals_are_counted_and_not_kept(compiler: Compiler):
    for _ in range(2):
        assert compiler.compile(GrammarKind.REGEX, "(").fault is not None
    assert compiler.grammars.counts == GrammarCounts(compiled=0, refused=2)
    assert compiler.grammars.num_kept == 0


def test_a_compilation_that_takes_too_long_is_given_up(held: HeldTokenizer):
    compiler = Compiler(held, VOCAB_SIZE, EOS, timeout_s=3, tokenizer_timeout_s=0)
    first = compiler.start(regex("a"))
    compiler.wait(first)
    assert first.fault is not None
    assert first.fault.code == "invalid_grammar"
    assert first.fault.message == "the grammar could not be compiled within 3 s"

    held.let_go.set()  # the first thread comes back, too late
    again = compiler.compile(GrammarKind.REGEX, "a")
    assert again.fault is None
    assert not first.is_ready
    assert compiler.grammars.counts == GrammarCounts(compiled=1, refused=1)
    compiler.grammars.close()


def test_the_first_grammar_may_wait_for_a_tokenizer_that_takes_long(held: HeldTokenizer):
    compiler = Compiler(held, VOCAB_SIZE, EOS, timeout_s=0.5)
    first = compiler.start(regex("a"))
    assert not held.let_go.wait(1.0)
    held.let_go.set()
    compiler.wait(first)
    assert first.is_ready
    compiler.grammars.close()


def doubled(keyword: str) -> str:
    """Return a small schema that takes exponential work: each definition has the next one twice."""
    twice = {f"d{k}": {keyword: [{"$ref": f"#/$defs/d{k + 1}"}] * 2} for k in range(40)}
    return json.dumps({"$defs": twice | {"d40": {"pattern": "a+"}}, "$ref": "#/$defs/d0"})


def chain(length: int) -> str:
    rules = (f'r{k}: "x{k}" r{k + 1} | "y"' for k in range(length))
    return "\n".join(["start: r0", *rules, f'r{length}: "z"'])


@pytest.mark.process
@pytest.mark.parametrize(
    ("kind", "source"),
    [
        (GrammarKind.JSON_SCHEMA, doubled("allOf")),  # ends the process that compiles it
        (GrammarKind.LARK, chain(8000)),  # overflows its stack
        (GrammarKind.JSON_SCHEMA, '{"type": "integer", "multipleOf": 999983}'),  # takes very long
    ],
)
def test_a_grammar_that_takes_too_much_is_refused_and_nothing_else_suffers(
    kind: GrammarKind, source: str
):
    compiler = Compiler(make_tokenizer, VOCAB_SIZE, EOS, timeout_s=3)
    before = compiler.compile(GrammarKind.REGEX, "before")
    bomb = compiler.compile(kind, source)
    assert bomb.fault is not None
    assert bomb.fault.code == "invalid_grammar"
    after = compiler.compile(GrammarKind.REGEX, "after")
    assert [WRITER.write(grammar, 0).text for grammar in (before, after)] == ["before", "after"]
    compiler.grammars.close()


@pytest.mark.process
def test_a_trial_process_that_died_is_replaced(compiler: Compiler):
    before = psutil.Process().children()
    assert compiler.compile(GrammarKind.REGEX, "a").is_ready
    (server,) = set(psutil.Process().children()) - set(before)
    assert "structured_trial" in str(server.cmdline())
    server.kill()
    server.wait(10)
    assert compiler.compile(GrammarKind.REGEX, "b").fault is not None
    assert compiler.compile(GrammarKind.REGEX, "c").is_ready


class SlowCompiler:
    """A pool whose compilations last until the test ends them by name."""

    def __init__(self) -> None:
        self.ends: dict[str, threading.Event] = {}
        self.begun: dict[str, threading.Event] = {}
        self.settled: list[tuple[str, CompiledGrammar | RequestError]] = []
        self.wanted = True
        self._changed = threading.Condition()
        self.pool = CompilePool(self._compile, lambda _: self.wanted, self._settle)

    def submit(self, name: str, *, timeout_s: float = 30.0, slow: bool = False) -> Compilation:
        if slow:
            self.ends[name] = threading.Event()
        self.begun[name] = threading.Event()
        compilation = Compilation(name.encode(), regex(name), timeout_s)
        self.pool.submit(compilation)
        return compilation

    def wait_for(self, *names: str) -> None:
        with self._changed:
            assert self._changed.wait_for(
                lambda: set(names) <= {name for name, _ in self.settled}, timeout=30
            )

    def close(self) -> None:
        for end in self.ends.values():
            end.set()
        self.pool.close()

    def _compile(self, grammar: Grammar) -> CompiledGrammar:
        self.begun[grammar.source].set()
        if grammar.source in self.ends:
            assert self.ends[grammar.source].wait(30)
        raise RefusedGrammarError(f"refused {grammar.source}")

    def _settle(self, compilation: Compilation, outcome: CompiledGrammar | RequestError) -> None:
        with self._changed:
            self.settled.append((compilation.grammar.source, outcome))
            self._changed.notify_all()


@pytest.fixture
def slow_compiler() -> Iterator[SlowCompiler]:
    slow_compiler = SlowCompiler()
    yield slow_compiler
    slow_compiler.close()


def test_who_waits_behind_long_compilations_is_told_in_time(slow_compiler: SlowCompiler):
    long = [f"long {index}" for index in range(structured_pool.COMPILE_THREADS)]
    for name in long:
        slow_compiler.submit(name, timeout_s=0.1, slow=True)
    slow_compiler.submit("behind", timeout_s=0.1)
    slow_compiler.wait_for(*long, "behind")
    assert not slow_compiler.begun["behind"].is_set()
    assert "within 0.1 s" in slow_compiler.settled[-1][1].message  # type: ignore[union-attr]

    for name in long:  # they come back and are not settled again
        slow_compiler.ends[name].set()
    slow_compiler.submit("last")
    slow_compiler.wait_for("last")
    names = [name for name, _ in slow_compiler.settled]
    assert sorted(names) == sorted([*long, "behind", "last"])


def test_what_nobody_waits_for_any_more_is_not_compiled(slow_compiler: SlowCompiler):
    slow_compiler.wanted = False
    slow_compiler.submit("unwanted")
    slow_compiler.wanted = True
    slow_compiler.submit("wanted")
    slow_compiler.wait_for("wanted")


def test_an_abort_while_compiling_leaves_nothing_behind(held: HeldTokenizer):
    compiler = Compiler(held, VOCAB_SIZE, EOS)
    aborted = [compiler.start(regex(f"a{index}")) for index in range(8)]
    gone = [weakref.ref(grammar) for grammar in aborted]
    kept = compiler.start(regex("kept"))
    aborted.clear()
    gc.collect()
    assert [ref() for ref in gone] == [None] * 8
    held.let_go.set()
    compiler.wait(kept)

    # two were in the threads already, nobody waited for the others any more
    assert 1 <= compiler.grammars.counts.compiled <= 1 + structured_pool.COMPILE_THREADS
    assert WRITER.write(compiler.compile(GrammarKind.REGEX, "a7"), 0).text == "a7"
    compiler.grammars.close()


def test_an_ended_request_is_forgotten_though_its_mask_was_begun(compiler: Compiler):
    grammar = compiler.compile(GrammarKind.REGEX, "a{100000}")
    accept_text(grammar, "a")
    grammar.begin_mask()
    gone = weakref.ref(grammar)
    del grammar
    other = compiler.compile(GrammarKind.REGEX, "bb")
    accept_text(other, "b")
    other.begin_mask()
    compiler.grammars.close()
    gc.collect()
    assert gone() is None


def test_clear_gives_back_what_is_kept_and_live_requests_go_on(compiler: Compiler):
    live = compiler.schema({"type": "array", "items": {"type": "boolean"}, "minItems": 3})
    accept_text(live, "[")
    compiler.grammars.clear()
    assert compiler.grammars.num_kept == 0
    assert WRITER.write(live, 0).is_complete

    assert compiler.schema({"type": "null"}).is_ready
    assert compiler.grammars.num_kept == 1


@pytest.mark.process
def test_grammars_that_are_compiled_while_all_is_given_back_lose_nothing(compiler: Compiler):
    for turn in range(8):
        wanted = [compiler.start(regex(f"a{turn}b{number}")) for number in range(4)]
        time.sleep(0.02 * turn)  # before, while and after the process starts
        compiler.grammars.clear()
        for progress in wanted:
            compiler.wait(progress)
        assert [progress.fault for progress in wanted] == [None] * 4


def test_close_ends_all_threads():
    before = set(threading.enumerate())
    compiler = Compiler(make_tokenizer, VOCAB_SIZE, EOS)
    WRITER.write(compiler.schema({}), 0)
    assert {t.name for t in set(threading.enumerate()) - before} >= {"grammar-compile"}
    compiler.grammars.close()
    assert not set(threading.enumerate()) - before


def test_close_without_a_grammar_is_nothing(held: HeldTokenizer):
    Compiler(held, VOCAB_SIZE, EOS).grammars.close()


def test_the_loop_is_woken_for_each_outcome(held: HeldTokenizer):
    calls: list[int] = []
    woken = threading.Semaphore(0)

    def on_ready() -> None:
        calls.append(threading.get_ident())
        woken.release()

    grammars = structured.GrammarCompiler(
        held, VOCAB_SIZE, EOS, timeout_s=0.7, on_ready=on_ready, tokenizer_timeout_s=0
    )
    late = grammars.start(regex("late"))
    assert woken.acquire(timeout=10)
    assert late.fault is not None
    held.let_go.set()
    fine, bad = grammars.start(regex("a")), grammars.start(regex("("))
    assert woken.acquire(timeout=10)
    assert woken.acquire(timeout=10)
    assert fine.is_ready
    assert bad.fault is not None
    assert len(calls) == 3
    assert threading.get_ident() not in calls
    grammars.close()


@pytest.mark.process
def test_llguidance_is_imported_with_the_first_grammar_and_never_torch():
    script = """
import sys, threading
from engine.core.structured import GrammarCompiler
from engine.wire.messages import Grammar, GrammarKind
from tests.tiny_model import make_tokenizer
ready = threading.Event()
grammars = GrammarCompiler(make_tokenizer, 417, (2,), timeout_s=30, on_ready=ready.set)
before = [name for name in sys.modules if name.startswith("llguidance")]
grammar = grammars.start(Grammar(kind=GrammarKind.JSON_OBJECT))
assert ready.wait(30) and grammar.is_ready, grammar.fault
grammar.mask()
print(before, "llguidance" in sys.modules, "torch" in sys.modules)
grammars.close()
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.split("\n")[0] == "[] True False", done.stderr
