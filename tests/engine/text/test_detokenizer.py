import random
from pathlib import Path
from typing import Any

import pytest

from engine.text.detokenizer import Detokenizer, TextDelta
from engine.text.tokenizer import Tokenizer
from tests.appliance.gateway.text_models import with_sentencepiece

ALPHABET = [*"abc \n.,<|>", "é", "你", "是", "👩", "\u200d", "🚢", "🦑", " the", "\ufffd"]


@pytest.fixture(scope="module")
def tokenizer(smollm2_path: Path) -> Tokenizer:
    return Tokenizer.load(smollm2_path)


def one_by_one(detokenizer: Detokenizer, token_ids: list[int]) -> list[str]:
    return [detokenizer.push([token_id]).text for token_id in token_ids]


def whole(tokenizer: Tokenizer, token_ids: list[int], **options: Any) -> tuple[str, str | None]:
    detokenizer = Detokenizer(tokenizer, [], **options)
    first = detokenizer.push(token_ids)
    last = detokenizer.finish()
    return first.text + last.text, last.stop


def test_an_emoji_comes_when_its_last_token_has_come(tokenizer: Tokenizer):
    token_ids = tokenizer.encode("ab🦑c")
    texts = one_by_one(Detokenizer(tokenizer, []), token_ids)

    assert "".join(texts) == "ab🦑c"
    assert not any("\ufffd" in text for text in texts)


def test_an_incomplete_character_comes_at_the_end_as_in_the_whole(tokenizer: Tokenizer):
    token_ids = tokenizer.encode("a🦑")[:-1]
    detokenizer = Detokenizer(tokenizer, [])
    texts = one_by_one(detokenizer, token_ids)

    assert "".join(texts) + detokenizer.finish().text == tokenizer.decode(token_ids) == "a\ufffd"


def test_endless_invalid_bytes_do_not_pile_up(tokenizer: Tokenizer):
    (continuation,) = [
        i for i in range(tokenizer.vocab_size) if tokenizer.token_bytes(i) == b"\x80"
    ]
    texts = one_by_one(Detokenizer(tokenizer, []), [continuation] * 40)

    assert texts == ["\ufffd"] * 40


def test_an_answer_completes_a_character_that_the_prompt_began(tokenizer: Tokenizer):
    *begun, last = tokenizer.encode("Look: 🦑")

    assert Detokenizer(tokenizer, begun).push([last]).text == "🦑"


def test_control_tokens_are_left_out_unless_asked_for(tokenizer: Tokenizer):
    token_ids = [*tokenizer.encode("hi"), 2]

    assert whole(tokenizer, token_ids) == ("hi", None)
    assert whole(tokenizer, token_ids, skip_special_tokens=False) == ("hi<|im_end|>", None)


def test_a_leading_space_is_kept_for_sentencepiece_models(tmp_path: Path):
    llama = Tokenizer.load(with_sentencepiece(tmp_path))
    token_ids = llama.encode("hello", add_special_tokens=False)

    assert "".join(one_by_one(Detokenizer(llama, [1]), token_ids)) == " hello"


def test_a_stop_string_ends_the_text_and_says_how_many_tokens_it_took(tokenizer: Tokenizer):
    token_ids = tokenizer.encode("one two STOP three four")
    taken = len(tokenizer.encode("one two STOP"))
    detokenizer = Detokenizer(tokenizer, [], stop=["STOP"])

    assert detokenizer.push(token_ids) == TextDelta("one two ", "STOP", taken)
    assert detokenizer.push(token_ids) == TextDelta("", "STOP", 0)
    assert detokenizer.finish() == TextDelta("", "STOP", 0)


def test_a_stop_string_over_tokens_never_shows(tokenizer: Tokenizer):
    token_ids = tokenizer.encode("ab\n\ncd")
    detokenizer = Detokenizer(tokenizer, [], stop=["\n\nc"])
    texts = one_by_one(detokenizer, token_ids)

    assert "".join(texts) == "ab"
    assert detokenizer.finish().stop == "\n\nc"


def test_a_stop_string_before_the_least_tokens_is_text(tokenizer: Tokenizer):
    token_ids = tokenizer.encode("a\nb c d e\nf")
    newline = tokenizer.encode("\n")[0]
    least = token_ids.index(newline) + 2

    assert whole(tokenizer, token_ids, stop=["\n"], min_tokens=least) == ("a\nb c d e", "\n")
    assert whole(tokenizer, token_ids, stop=["\n"], min_tokens=99) == ("a\nb c d e\nf", None)


def test_the_least_token_itself_may_stop(tokenizer: Tokenizer):
    token_ids = tokenizer.encode("a\nb")

    assert whole(tokenizer, token_ids, stop=["\n"], min_tokens=2) == ("a", "\n")


@pytest.mark.parametrize("seed", range(10))
def test_any_grouping_of_tokens_gives_the_text_of_the_whole(tokenizer: Tokenizer, seed: int):
    rng = random.Random(seed)
    for _ in range(40):
        text = "".join(rng.choices(ALPHABET, k=rng.randrange(1, 25)))
        token_ids = tokenizer.encode(text)[: rng.randrange(1, 40)]
        stop = ["".join(rng.choices(ALPHABET, k=rng.randrange(1, 4))) for _ in range(2)]
        options = {"stop": stop, "min_tokens": rng.randrange(4), "include_stop": rng.random() < 0.5}
        detokenizer = Detokenizer(tokenizer, [], **options)
        texts: list[str] = []
        at = 0
        while at < len(token_ids):
            size = rng.randrange(1, 5)
            texts.append(detokenizer.push(token_ids[at : at + size]).text)
            at += size
        last = detokenizer.finish()
        assert ("".join(texts) + last.text, last.stop) == whole(tokenizer, token_ids, **options)


def test_without_stop_strings_any_ids_give_what_the_library_decodes(tokenizer: Tokenizer):
    rng = random.Random(3)
    for _ in range(200):
        token_ids = [rng.randrange(tokenizer.vocab_size) for _ in range(20)]
        detokenizer = Detokenizer(tokenizer, [])
        texts = one_by_one(detokenizer, token_ids)
        assert "".join(texts) + detokenizer.finish().text == tokenizer.decode(token_ids)
