"""The engine's own check of requests: every bound is named, and what is within it passes."""

import msgspec
import pytest

from engine.core.bounds import complaint
from engine.wire.messages import AddRequest, Grammar, GrammarKind, SamplingParams

INF, NAN = float("inf"), float("nan")
SOUND = AddRequest(
    request_id="r",
    prompt_token_ids=(1, 2),
    sampling=SamplingParams(
        max_tokens=5,
        min_tokens=2,
        prompt_logprobs=20,
        repetition_penalty=1.2,
        frequency_penalty=-2.0,
        presence_penalty=2.0,
        logit_bias=((0, -100.0), (9, 100.0)),
        allowed_token_ids=(0, 9),
        bad_words=((1, 2), (3,)),
        stop_token_ids=(4,),
    ),
    arrival_ns=0,
    priority=-(2**31),
    adapter="a",
    cache_salt="s" * 256,
    grammar=Grammar(kind=GrammarKind.REGEX, source="a"),
)


def told(**fields: object) -> str | None:
    return complaint(msgspec.structs.replace(SOUND, **fields), vocab_size=10)


def told_of_sampling(**fields: object) -> str | None:
    return told(sampling=msgspec.structs.replace(SOUND.sampling, **fields))


def test_a_sound_request_passes():
    assert told() is None
    assert told(grammar=Grammar(kind=GrammarKind.JSON_OBJECT)) is None
    assert told(grammar=None, adapter=None, cache_salt=None) is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_tokens", 0),
        ("min_tokens", 6),
        ("temperature", NAN),
        ("top_p", 0.0),
        ("prompt_logprobs", 21),
        ("prompt_logprobs", -1),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", NAN),
        ("repetition_penalty", INF),
        ("frequency_penalty", NAN),
        ("presence_penalty", -INF),
        ("logit_bias", ((10, 1.0),)),
        ("logit_bias", ((-1, 1.0),)),
        ("logit_bias", ((3, 1.0), (3, 2.0))),
        ("logit_bias", tuple((0, 1.0) for _ in range(5000))),
        ("allowed_token_ids", (10,)),
        ("allowed_token_ids", (0,) * 70_000),
        ("bad_words", ((1, 10),)),
        ("bad_words", ((),)),
        ("bad_words", ((1,) * 1025,)),
        ("bad_words", ((1,),) * 300),
        ("stop_token_ids", (10,)),
    ],
)
def test_sampling_out_of_bounds_is_named(name, value):
    assert name in told_of_sampling(**{name: value})


@pytest.mark.parametrize("bias", [NAN, INF, 1e7])
def test_biases_are_finite(bias):
    assert "biases must be" in told_of_sampling(logit_bias=((1, bias),))


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"adapter": ""}, "adapter"),
        ({"adapter": "a" * 257}, "adapter"),
        ({"cache_salt": "é" * 129}, "cache_salt"),
        ({"cache_salt": "\ud800" * 300}, "cache_salt"),
        ({"priority": 2**31}, "priority"),
        ({"prompt_token_ids": ()}, "prompt"),
        ({"prompt_token_ids": (10,)}, "prompt"),
        ({"grammar": Grammar(kind=GrammarKind.REGEX, source="é" * 131_073)}, "grammar"),
        ({"grammar": Grammar(kind=GrammarKind.LARK)}, "grammar"),
    ],
)
def test_the_rest_of_a_request_is_bounded_too(fields, word):
    assert word in told(**fields)
