import json
import math
from pathlib import Path

import pytest

from appliance.gateway.logprobs import TextOffsets, chat_logprobs, completion_logprobs
from engine.text.detokenizer import Detokenizer
from engine.text.tokenizer import Tokenizer
from engine.wire.messages import TokenLogprob, TokenLogprobs


@pytest.fixture(scope="module")
def tokenizer(smollm2_path: Path) -> Tokenizer:
    return Tokenizer.load(smollm2_path)


def entries_of(token_ids: list[int], logprob: float = -0.5) -> list[TokenLogprobs]:
    return [
        TokenLogprobs(
            token_id=token_id,
            logprob=logprob,
            top=(
                TokenLogprob(token_id=token_id, logprob=logprob),
                TokenLogprob(token_id=40, logprob=-2.25),
            ),
        )
        for token_id in token_ids
    ]


def test_the_bytes_of_a_split_emoji_add_up_to_it(tokenizer: Tokenizer):
    content = chat_logprobs(tokenizer, entries_of(tokenizer.encode("🦑")))

    assert bytes(byte for entry in content for byte in entry["bytes"]) == "🦑".encode()
    assert content[0]["bytes"][0] == 0xF0
    assert all(entry["token"] for entry in content)


def test_a_chinese_token_reads_as_text(tokenizer: Tokenizer):
    token_id = next(
        i for i in range(tokenizer.vocab_size) if tokenizer.token_bytes(i) == "人".encode()
    )
    (entry,) = chat_logprobs(tokenizer, entries_of([token_id]))

    assert entry["token"] == "人"
    assert entry["top_logprobs"][0] == {"token": "人", "logprob": -0.5, "bytes": [228, 186, 186]}


def test_without_top_candidates_the_list_is_empty(tokenizer: Tokenizer):
    (entry,) = chat_logprobs(tokenizer, [TokenLogprobs(token_id=40, logprob=-1.5)])

    assert entry == {
        "token": tokenizer.token_text(40),
        "logprob": -1.5,
        "bytes": list(tokenizer.token_bytes(40)),
        "top_logprobs": [],
    }


def test_every_token_can_be_written_as_json_and_has_a_name(tokenizer: Tokenizer):
    entries = entries_of(list(range(tokenizer.vocab_size)))

    chat = chat_logprobs(tokenizer, entries)
    completion = completion_logprobs(tokenizer, entries, TextOffsets(tokenizer))

    json.dumps([chat, completion], allow_nan=False, ensure_ascii=False).encode()
    assert all(entry["token"] for entry in chat)
    assert all(completion["tokens"])


@pytest.mark.parametrize("logprob", [-math.inf, math.nan])
def test_impossible_tokens_have_a_logprob_that_json_can_say(tokenizer: Tokenizer, logprob: float):
    entries = entries_of([40], logprob)

    assert chat_logprobs(tokenizer, entries)[0]["logprob"] == -9999.0
    completion = completion_logprobs(tokenizer, entries, TextOffsets(tokenizer))
    assert completion["token_logprobs"] == [-9999.0]


def test_the_chosen_token_is_among_the_top_with_the_same_number(tokenizer: Tokenizer):
    chosen = TokenLogprobs(
        token_id=500, logprob=-7.123456789, top=(TokenLogprob(token_id=40, logprob=-0.1),)
    )
    completion = completion_logprobs(tokenizer, [chosen], TextOffsets(tokenizer))
    (top,) = completion["top_logprobs"]

    assert top == {
        tokenizer.token_text(40): -0.1,
        tokenizer.token_text(500): completion["token_logprobs"][0],
    }


def test_text_offsets_count_characters_from_the_start_of_the_text(tokenizer: Tokenizer):
    token_ids = tokenizer.encode("Hi 🦑!")
    completion = completion_logprobs(
        tokenizer, entries_of(token_ids), TextOffsets(tokenizer, offset=10)
    )

    offsets = completion["text_offset"]
    assert offsets[0] == 10
    assert offsets[-1] == 10 + len("Hi 🦑")
    assert offsets == sorted(offsets)


@pytest.mark.parametrize("skips", [True, False])
def test_text_offsets_are_places_in_the_text_that_the_tokens_make(
    tokenizer: Tokenizer, skips: bool
):
    emoji = tokenizer.encode("🦑")
    # a character begun in the prompt, a broken one, a control token, whole words
    before, token_ids = emoji[:1], [*emoji[1:], emoji[0], *tokenizer.encode("é, "), 2, 500]
    detokenizer = Detokenizer(tokenizer, before, skip_special_tokens=skips)
    offsets = TextOffsets(tokenizer, before, 7, skip_special_tokens=skips)
    text = ""
    for token_id in token_ids:  # one at a time, as a stream has them
        (offset,) = offsets.of(entries_of([token_id]))
        assert offset == 7 + len(text)
        text += detokenizer.push([token_id]).text
    assert "🦑\N{REPLACEMENT CHARACTER}é, " in text
    assert ("<|im_end|>" in text) is not skips


def test_parts_of_characters_keep_different_names(tokenizer: Tokenizer):
    token_ids = tokenizer.encode("🦑")
    tokens = completion_logprobs(tokenizer, entries_of(token_ids), TextOffsets(tokenizer))["tokens"]

    assert tokens[0].startswith("bytes:\\xf0")
    assert len(set(tokens)) == len(set(token_ids))
