"""Outputs that wait for a slow reader become one that says what all of them say."""

import pytest

from engine.client.collector import RequestOutputCollector, merge
from engine.wire.messages import FinishReason, RequestOutput, Timeline, TokenLogprobs


def entry(token_id: int) -> TokenLogprobs:
    return TokenLogprobs(token_id=token_id, logprob=-1.0)


FIRST = RequestOutput(
    request_id="r",
    new_token_ids=(1,),
    logprobs=(entry(1),),
    timeline=Timeline(received_ns=1),
    cached_tokens=5,
    prompt_logprobs=(entry(8), entry(9)),
    warnings=("a", "b"),
)
LAST = RequestOutput(
    request_id="r",
    new_token_ids=(2, 3),
    logprobs=(entry(2), entry(3)),
    finish_reason=FinishReason.STOP,
    stop_token_id=3,
    warnings=("b", "c"),
)


def test_nothing_of_either_output_is_lost():
    both = merge(FIRST, LAST)

    assert both == RequestOutput(
        request_id="r",
        new_token_ids=(1, 2, 3),
        logprobs=(entry(1), entry(2), entry(3)),
        finish_reason=FinishReason.STOP,
        stop_token_id=3,
        timeline=Timeline(received_ns=1),
        cached_tokens=5,
        prompt_logprobs=(entry(8), entry(9)),
        warnings=("a", "b", "c"),
    )


def test_what_neither_has_stays_absent():
    both = merge(RequestOutput(request_id="r"), RequestOutput(request_id="r"))

    assert both.logprobs is None
    assert both.prompt_logprobs is None
    assert both.warnings == ()


def test_prompt_logprobs_in_parts_are_joined():
    parts = [RequestOutput(request_id="r", prompt_logprobs=(entry(at),)) for at in (1, 2)]

    assert merge(*parts).prompt_logprobs == (entry(1), entry(2))


@pytest.mark.anyio
async def test_a_slow_reader_gets_all_as_one():
    collector = RequestOutputCollector("r", "e0", 1)
    collector.put(FIRST)
    collector.put(LAST)

    assert await collector.get() == merge(FIRST, LAST)
