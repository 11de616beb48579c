"""A model of random logits that writes within a grammar, and is made to come to an end."""

import datetime
import json
import re
import threading
from collections.abc import Callable
from typing import Any

import jsonschema
import numpy as np
from tokenizers import Tokenizer

from engine.core.batch import RequestGrammar
from engine.core.structured import GrammarCompiler
from engine.wire.messages import Grammar, GrammarKind


class Written:
    """What came out."""

    def __init__(self, text: str, *, is_complete: bool, num_tokens: int) -> None:
        self.text = text
        self.is_complete = is_complete
        self.num_tokens = num_tokens


class RandomWriter:
    """Chooses among the allowed tokens as a model would: from logits, here random ones.

    After `calm_tokens` it gets ever keener on what ends strings, lists and objects.
    """

    def __init__(
        self, tokenizer: Tokenizer, vocab_size: int, eos_token_ids: tuple[int, ...]
    ) -> None:
        self.tokenizer = tokenizer
        self.vocab_size = vocab_size
        self.eos_token_ids = eos_token_ids
        known = tokenizer.get_vocab_size()
        texts = [tokenizer.decode([i]) if i < known else "" for i in range(vocab_size)]
        self._keenness = np.array([_keenness(text) for text in texts])
        self._keenness[list(eos_token_ids)] = 2.0

    def write(
        self, grammar: RequestGrammar, seed: int, *, max_tokens: int = 400, calm_tokens: int = 25
    ) -> Written:
        """Write until the grammar ends, as the engine does: mask, choose, accept."""
        rng = np.random.default_rng(seed)
        token_ids: list[int] = []
        for step in range(max_tokens):
            grammar.begin_mask()
            allowed = allowed_tokens(grammar.mask(), self.vocab_size)
            assert len(allowed), "some token is allowed"
            logits = rng.standard_normal(len(allowed))
            pressure = max(0, step - calm_tokens) / 10
            token_id = int(allowed[np.argmax(logits + pressure * self._keenness[allowed])])
            assert grammar.accept(token_id) is None
            if token_id in self.eos_token_ids:
                return Written(self.text(token_ids), is_complete=True, num_tokens=step)
            token_ids.append(token_id)
        return Written(self.text(token_ids), is_complete=False, num_tokens=max_tokens)

    def text(self, token_ids: list[int]) -> str:
        return self.tokenizer.decode(token_ids, skip_special_tokens=True)


def _keenness(text: str) -> float:
    if text[:1] in {'"', "}", "]"}:
        return 1.0
    if text[:1] in {"{", "[", "\\"} or text[:1].isdigit() or not text.strip():
        return -1.0
    return 0.0


def allowed_tokens(mask: Any, vocab_size: int) -> Any:
    """Return the ids whose bits are set; none may be beyond the vocabulary."""
    assert mask.dtype == np.int32
    assert mask.shape == ((vocab_size + 31) // 32,)
    ids = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
    assert not len(ids) or ids[-1] < vocab_size
    return ids


class Compiler:
    """A `GrammarCompiler` and a way to wait for it."""

    def __init__(
        self,
        make: Callable[[], Tokenizer],
        vocab_size: int,
        eos: tuple[int, ...],
        *,
        timeout_s: float = 30.0,
        tokenizer_timeout_s: float = 30.0,
    ) -> None:
        self._ready = threading.Condition()
        self.grammars = GrammarCompiler(
            make,
            vocab_size,
            eos,
            timeout_s=timeout_s,
            tokenizer_timeout_s=tokenizer_timeout_s,
            on_ready=self._on_ready,
        )

    def start(self, grammar: Grammar) -> RequestGrammar:
        return self.grammars.start(grammar)

    def wait(self, *started: RequestGrammar) -> None:
        with self._ready:
            assert self._ready.wait_for(lambda: all(r.is_ready or r.fault for r in started), 60)

    def compile(
        self, kind: GrammarKind, source: str = "", *, lenient: bool = False, compact: bool = False
    ) -> RequestGrammar:
        grammar = Grammar(kind=kind, source=source, lenient=lenient, compact=compact)
        started = self.start(grammar)
        self.wait(started)
        return started

    def schema(self, schema: Any, *, lenient: bool = False) -> RequestGrammar:
        return self.compile(GrammarKind.JSON_SCHEMA, json.dumps(schema), lenient=lenient)

    def _on_ready(self) -> None:
        with self._ready:
            self._ready.notify_all()


# ------------------------------------------------------------ validation

FORMATS = jsonschema.FormatChecker(formats=["date", "email", "ipv4", "ipv6", "uuid"])
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?(\.[A-Za-z0-9-]{1,63})*")
_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:[^\s\"<>\\^`{|}]*")
_DURATION = re.compile(
    r"P(\d+W|(\d+Y)?(\d+M)?(\d+D)?(T(\d+H)?(\d+M)?(\d+S)?)?)", re.ASCII | re.IGNORECASE
)


def _is_time(value: str) -> bool:
    """RFC 3339: a leap second is a time, and an offset is needed."""
    plain = re.sub(r"(:\d\d):60", r"\1:59", value.upper().replace("Z", "+00:00"))
    plain = re.sub(r"\.\d+", "", plain)
    return datetime.time.fromisoformat(plain).tzinfo is not None


def _check(name: str, is_right: Callable[[str], bool]) -> None:
    FORMATS.checks(name, raises=ValueError)(
        lambda value: not isinstance(value, str) or is_right(value)
    )


_check("time", _is_time)
_check("date-time", lambda v: bool(datetime.date.fromisoformat(v[:10])) and _is_time(v[11:]))
_check("hostname", lambda v: bool(_HOST.fullmatch(v)))
_check("uri", lambda v: bool(_URI.fullmatch(v)))
_check("duration", lambda v: bool(_DURATION.fullmatch(v)) and v[-1] not in "PT")


def validate(text: str, schema: Any) -> None:
    """Raise unless the text is JSON and valid, formats included."""
    kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    kind(schema, format_checker=FORMATS).validate(json.loads(text))
