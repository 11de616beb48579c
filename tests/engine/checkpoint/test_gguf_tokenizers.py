"""Tokenizers of GGUF files, against SentencePiece's algorithm and transformers' converters."""

import inspect
import itertools
import json
import random
from pathlib import Path

import pytest
from tokenizers import Regex, pre_tokenizers
from transformers.convert_slow_tokenizer import Qwen2Converter, TikTokenConverter
from transformers.integrations.ggml import convert_gguf_tokenizer

from engine.checkpoint.checkpoint import Checkpoint, open_checkpoint
from engine.checkpoint.errors import CheckpointError, UnsupportedModelError
from engine.checkpoint.gguf_tokenizer import (
    BYTE,
    CONTROL,
    NORMAL,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    GgufVocabulary,
    build_tokenizer,
)
from engine.text.tokenizer import Tokenizer
from tests.tiny_model import CORPUS, SPECIAL, make_tokenizer

SPACE = "\u2581"
TEXTS = [
    "Hello, world!",
    " leading, trailing ",
    "a   b\n\n\nc\t\td\r\n",
    "naïve café 你好 \U0001f600 \u0378\u0379",
    "def f(x):\n    return x**2  # 3.14159",
    "<table><tr>x</tr></table>",
    "1234567890",
    "x" * 300,
    "",
]


@pytest.fixture(scope="module")
def gemma3(gemma3_path: Path) -> Checkpoint:
    return open_checkpoint(gemma3_path)


@pytest.fixture(scope="module")
def gemma3_tokenizer(gemma3: Checkpoint) -> Tokenizer:
    return Tokenizer(gemma3)


class SentencePiece:
    """Encodes as SentencePiece does, by the letter.

    The user's symbols are cut out, longest first; then the pair with the best score is merged, the
    leftmost of equals, until there is none.
    """

    def __init__(self, vocabulary: GgufVocabulary) -> None:
        typed = zip(vocabulary.tokens, vocabulary.scores, vocabulary.token_types, strict=True)
        entries = list(typed)
        self.ids = {token: token_id for token_id, token in enumerate(vocabulary.tokens)}
        self.own = {token for token, _, kind in entries if kind == USER_DEFINED}
        self.scores = {token: score for token, score, kind in entries if kind == NORMAL}

    def encode(self, text: str) -> list[int]:
        symbols = self.cut(text)
        while pairs := [
            (self.scores[left + right], -index)
            for index, (left, right) in enumerate(itertools.pairwise(symbols))
            if left not in self.own and right not in self.own and left + right in self.scores
        ]:
            index = -max(pairs)[1]
            symbols[index : index + 2] = [symbols[index] + symbols[index + 1]]
        return [token_id for symbol in symbols for token_id in self.ids_of(symbol)]

    def cut(self, text: str) -> list[str]:
        longest = max(map(len, self.own))
        symbols: list[str] = []
        while text:
            sizes = range(min(longest, len(text)), 0, -1)
            size = next((size for size in sizes if text[:size] in self.own), None)
            symbols.append(text[:size] if size else text[0].replace(" ", SPACE))
            text = text[size or 1 :]
        return symbols

    def ids_of(self, symbol: str) -> list[int]:
        if symbol in self.ids:
            return [self.ids[symbol]]
        return [self.ids[f"<0x{byte:02X}>"] for byte in symbol.encode()]


def test_gemma3_gives_the_ids_that_the_sentencepiece_library_gives(gemma3_tokenizer: Tokenizer):
    # computed once with sentencepiece 0.2.3 from the vocabulary of this very file
    for text, ids in {
        "Hello, world!  a   b\n\n\nc\t\td": [
            *(9259, 236764, 1902, 236888, 138, 236746, 139, 236763, 109, 236755, 255969, 236753)
        ],
        "naïve 你好 \U0001f600 \u0378 <table> ": [
            *(1789, 238527, 560, 43758, 237389, 163543, 236743, 443, 422, 236743, 168, 236743)
        ],
    }.items():
        assert gemma3_tokenizer.encode(text, add_special_tokens=False) == ids


def test_gemma3_merges_by_score(gemma3: Checkpoint, gemma3_tokenizer: Tokenizer):
    vocabulary = gemma3._vocabulary
    oracle = SentencePiece(vocabulary)
    rng = random.Random(0)
    letters = [*"abcdeé 你😀\u0378\n\t<1.", "  ", "\n\n"]
    made = ["".join(rng.choices(letters, k=rng.randint(1, 30))) for _ in range(30)]
    words = ["".join(rng.choices(vocabulary.tokens[1000:200_000], k=6)) for _ in range(10)]

    assert len(vocabulary.tokens) == 262_144
    for text in [*TEXTS, *made, *(word.replace(SPACE, " ") for word in words)]:
        ids = gemma3_tokenizer.encode(text, add_special_tokens=False)
        assert ids == oracle.encode(text), text
        assert gemma3_tokenizer.decode(ids) == text


def test_gemma3_marks_control_tokens_and_begins_with_bos(
    gemma3: Checkpoint, gemma3_tokenizer: Tokenizer
):
    assert gemma3.add_bos
    assert (gemma3.bos_token, gemma3.eos_token) == ("<bos>", "<eos>")
    assert gemma3.eos_token_ids == (1, 106)
    assert gemma3_tokenizer.encode("Hello") == [2, 9259]
    assert gemma3_tokenizer.control_tokens["<end_of_turn>"] == 106
    assert "<table>" not in gemma3_tokenizer.control_tokens
    assert 106 not in gemma3_tokenizer.encode("<end_of_turn>")
    assert gemma3_tokenizer.encode_rendered("<start_of_turn>user\n", {}) == [105, 2364, 107]
    text = "  \u0378 é"
    ids = gemma3_tokenizer.encode(text, add_special_tokens=False)
    assert b"".join(map(gemma3_tokenizer.token_bytes, ids)) == text.encode()


def spm_vocabulary(**changes: object) -> GgufVocabulary:
    """A small vocabulary as Llama 2 has it: merged tokens have descending scores."""
    merged = [f"{SPACE}t", "he", f"{SPACE}a", "in", f"{SPACE}the", "an", "on", "er", f"{SPACE}an"]
    single = [SPACE, *"theaoinrsd"]
    pieces = [*merged, *single]
    fields = {
        "model": "llama",
        "pre": "default",
        "tokens": [
            *("<unk>", "<s>", "</s>"),
            *(f"<0x{byte:02X}>" for byte in range(256)),
            *pieces,
            "[INST]",
        ],
        "scores": [*([0.0] * 259), *(-float(rank) for rank in range(len(pieces))), 0.0],
        "token_types": [
            *(UNKNOWN, CONTROL, CONTROL),
            *([BYTE] * 256),
            *([NORMAL] * len(pieces)),
            CONTROL,
        ],
        "unknown_id": 0,
    }
    return GgufVocabulary(**(fields | changes))


@pytest.mark.parametrize(
    "text", ["the then an tea", " the", "x the", "the  one ", "é\n", "", "[INST] the[INST]the</s>"]
)
def test_llama_files_give_the_ids_of_transformers_converter(text: str):
    vocabulary = spm_vocabulary()
    theirs, _ = convert_gguf_tokenizer(
        "llama",
        {
            "tokens": list(vocabulary.tokens),
            "scores": list(vocabulary.scores),
            "token_type": list(vocabulary.token_types),
            "unk_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
    )
    ours = build_tokenizer(vocabulary)

    ids = ours.encode(text).ids
    assert ids == theirs.encode(text).ids
    if "[" not in text:
        assert ours.decode(ids) == text


def test_the_space_in_front_can_be_switched_off():
    with_space, without = (
        build_tokenizer(spm_vocabulary(adds_space=adds)) for adds in (True, False)
    )

    assert with_space.encode("the").tokens == [f"{SPACE}the"]
    assert without.encode("the").tokens == ["t", "he"]
    assert without.decode(without.encode(" the").ids) == " the"


def test_phi3_drops_space_after_control_tokens():
    tokenizer = build_tokenizer(spm_vocabulary(control_swallows_space=True))

    def tokens(text: str) -> list[str]:
        return [tokenizer.id_to_token(token_id) for token_id in tokenizer.encode(text).ids]

    assert tokens("[INST] \n the") == ["[INST]", f"{SPACE}the"]
    assert tokens("<s> the") == ["<s>", SPACE, f"{SPACE}the"]


def byte_vocabulary(pre: str, **changes: object) -> GgufVocabulary:
    """The tiny model's vocabulary with another way to cut texts."""
    tokenizer = make_tokenizer()
    vocab = tokenizer.get_vocab()
    tokens = sorted(vocab, key=vocab.__getitem__)
    merges = [" ".join(pair) for pair in json.loads(tokenizer.to_str())["model"]["merges"]]
    types = [CONTROL if token in SPECIAL else NORMAL for token in tokens]
    fields = {"model": "gpt2", "pre": pre, "tokens": tokens, "token_types": types, "merges": merges}
    return GgufVocabulary(**(fields | changes))


def pieces(pre: str, text: str) -> list[str]:
    cut = build_tokenizer(byte_vocabulary(pre)).pre_tokenizer.pre_tokenize_str(text)
    return [text[start:end] for _, (start, end) in cut]


QWEN2_PATTERN = "".join(
    inspect.getsource(Qwen2Converter.converted).split('r"""')[1].split('"""')[0]
)
TIKTOKEN_PATTERN = inspect.signature(TikTokenConverter.__init__).parameters["pattern"].default


@pytest.mark.parametrize("text", [*TEXTS, *CORPUS, "I'll DON'T we'Re x_y $10,000.00?!\n\n  z"])
@pytest.mark.parametrize(
    ("pre", "pattern"), [("qwen2", QWEN2_PATTERN), ("llama-bpe", TIKTOKEN_PATTERN)]
)
def test_texts_are_cut_as_transformers_cuts_them(pre: str, pattern: str, text: str):
    theirs = pre_tokenizers.Split(Regex(pattern), "isolated").pre_tokenize_str(text)

    assert pieces(pre, text) == [piece for piece, _ in theirs]


@pytest.mark.parametrize(
    ("pre", "text", "expected"),
    [
        ("gpt-2", "it's 1234", ["it", "'s", " 1234"]),
        ("smollm", "it's 12", ["it", "'s", " ", "1", "2"]),
        ("starcoder", "it's 12", ["it", "'s", " ", "1", "2"]),
        ("llama-bpe", "it's 12345", ["it", "'s", " ", "123", "45"]),
        ("dbrx", "it's 12345", ["it", "'s", " ", "123", "45"]),
        ("qwen2", "it's 12", ["it", "'s", " ", "1", "2"]),
        ("tekken", "camelCase URLs 12 a/b", ["camel", "Case", " URLs", " ", "1", "2", " a", "/b"]),
        ("gpt-4o", "it's camelCase 1234", ["it's", " camel", "Case", " ", "123", "4"]),
    ],
)
def test_every_kind_cuts_in_its_own_way(pre: str, text: str, expected: list[str]):
    assert pieces(pre, text) == expected


def test_qwen2_composes_accents_and_others_do_not():
    decomposed = "cafe\u0301"

    assert build_tokenizer(byte_vocabulary("qwen2")).encode(decomposed).ids == (
        build_tokenizer(byte_vocabulary("qwen2")).encode("caf\u00e9").ids
    )
    other = build_tokenizer(byte_vocabulary("llama-bpe"))
    assert other.decode(other.encode(decomposed).ids) == decomposed


def test_llama3_takes_whole_words_that_no_merge_makes():
    vocabulary = byte_vocabulary("llama-bpe")
    tokens, types = [*vocabulary.tokens, "zzqq"], [*vocabulary.token_types, NORMAL]

    whole = build_tokenizer(byte_vocabulary("llama-bpe", tokens=tokens, token_types=types))
    merged = build_tokenizer(byte_vocabulary("qwen2", tokens=tokens, token_types=types))

    assert whole.encode("zzqq").tokens == ["zzqq"]
    assert len(merged.encode("zzqq").tokens) == 4


def test_padding_of_the_vocabulary_is_no_token():
    vocabulary = byte_vocabulary("qwen2")
    tokens, types = [*vocabulary.tokens, "[PAD512]"], [*vocabulary.token_types, UNUSED]

    tokenizer = build_tokenizer(byte_vocabulary("qwen2", tokens=tokens, token_types=types))

    assert tokenizer.token_to_id("[PAD512]") is None


@pytest.mark.parametrize(
    ("changes", "error", "reason"),
    [
        ({"model": "bert"}, UnsupportedModelError, "supported: gpt2, llama"),
        ({"scores": [0.0]}, CheckpointError, "one score for each"),
        ({"token_types": [1]}, CheckpointError, "one type for each"),
        (
            {"model": "gpt2", "pre": "viking"},
            UnsupportedModelError,
            "supported: command-r, .*qwen2",
        ),
        ({"model": "gpt2", "pre": "gpt-2", "merges": ["ab"]}, CheckpointError, "no second part"),
        ({"model": "gpt2", "pre": "gpt-2", "merges": ["a zz"]}, CheckpointError, "inconsistent"),
    ],
)
def test_vocabularies_that_cannot_be_used_are_refused(changes, error, reason):
    with pytest.raises(error, match=reason):
        build_tokenizer(spm_vocabulary(**changes))
