"""Penalties against their formulas, and the counting against counting anew."""

from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.core import penalties
from engine.core.penalties import Penalties, TokenCounts
from tests.engine.core.sample_rows import a_row, adjusted

LOGITS = [3.0, -2.0, 0.0, 1.5, -0.5, 2.5]


def after(row) -> list[float]:
    logits = torch.tensor([LOGITS])
    Penalties().apply(logits, [row])
    return logits[0].tolist()


def test_repetition_divides_positive_and_multiplies_negative_logits_of_prompt_and_output():
    row = a_row(repetition_penalty=2.0, history=[0, 1, 2, 3, 3], num_prompt_tokens=2)

    assert after(row) == [1.5, -4.0, 0.0, 0.75, -0.5, 2.5]


def test_frequency_counts_the_output_only():
    row = a_row(frequency_penalty=0.5, history=[0, 0, 1, 3, 3], num_prompt_tokens=2)

    assert after(row) == [3.0, -2.5, 0.0, 0.5, -0.5, 2.5]


def test_presence_counts_once():
    row = a_row(presence_penalty=0.5, history=[0, 0, 1, 3, 3], num_prompt_tokens=2)

    assert after(row) == [3.0, -2.5, 0.0, 1.0, -0.5, 2.5]


def test_repetition_comes_before_the_others():
    row = a_row(
        repetition_penalty=2.0,
        frequency_penalty=0.25,
        presence_penalty=1.0,
        history=[5, 0, 0],
        num_prompt_tokens=1,
    )

    assert after(row) == [0.0, -2.0, 0.0, 1.5, -0.5, 1.25]


def test_negative_penalties_encourage():
    row = a_row(frequency_penalty=-1.0, history=[0, 2, 2], num_prompt_tokens=1)

    assert after(row) == [3.0, -2.0, 2.0, 1.5, -0.5, 2.5]


def test_rows_without_penalties_are_left_alone():
    logits = torch.tensor([LOGITS] * 3)
    rows = [
        a_row(history=[0, 1]),
        a_row(frequency_penalty=1.0, history=[0, 1], request_id="p"),
        a_row(presence_penalty=1.0, history=[0], request_id="no output"),
    ]

    Penalties().apply(logits, rows)

    assert logits[0].tolist() == logits[2].tolist() == LOGITS
    assert logits[1].tolist() == [3.0, -3.0, *LOGITS[2:]]


TOKENS = st.lists(st.integers(0, 7), min_size=1, max_size=12)


@settings(max_examples=300, deadline=None)
@given(st.lists(TOKENS, min_size=1, max_size=6), st.integers(0, 12))
def test_following_any_histories_counts_what_counting_anew_counts(histories, num_prompt):
    counts = TokenCounts(num_prompt)
    for history in histories:
        counts.follow(history)

        said = counts.said()
        found = dict(zip(said.ids.tolist(), said.outputs.tolist(), strict=True))
        output = Counter(history[num_prompt:])
        assert found == {token_id: output[token_id] for token_id in set(history)}
        assert len(said.ids) == len(found)
        del said  # it holds the memory that the next step extends


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abc"), TOKENS, st.integers(1, 3)), max_size=20))
def test_what_is_kept_between_steps_changes_nothing(steps):
    kept = Penalties()
    for name, history, num_prompt in steps:
        row = a_row(
            repetition_penalty=1.3,
            frequency_penalty=0.7,
            presence_penalty=-0.2,
            request_id=name,
            history=history,
            num_prompt_tokens=min(num_prompt, len(history)),
        )
        logits = torch.arange(8.0).sub(4.0).unsqueeze(0)
        anew = logits.clone()

        kept.apply(logits, [row])
        Penalties().apply(anew, [row])

        assert torch.equal(logits, anew)
        assert logits[0].tolist() == pytest.approx(adjusted([v - 4.0 for v in range(8)], row))


def penalise(kept: Penalties, name: str, num_tokens: int) -> None:
    row = a_row(frequency_penalty=1.0, request_id=name, history=[1] * num_tokens)
    kept.apply(torch.zeros(1, 4), [row])


def test_what_is_kept_is_bounded_and_forgotten_when_idle(monkeypatch):
    monkeypatch.setattr(penalties, "MAX_KEPT_TOKENS", 100)
    monkeypatch.setattr(penalties, "MAX_IDLE_STEPS", 3)
    kept = Penalties()

    for at in range(10):
        penalise(kept, str(at), 40)
        assert kept.num_kept_tokens <= 100
    for _ in range(5):
        kept.apply(torch.zeros(1, 4), [a_row()])

    assert kept.num_kept_tokens == 0


def test_a_history_longer_than_the_bound_is_penalised_all_the_same(monkeypatch):
    monkeypatch.setattr(penalties, "MAX_KEPT_TOKENS", 10)
    logits = torch.zeros(1, 4)
    row = a_row(frequency_penalty=0.5, history=[0] + [2] * 50, num_prompt_tokens=1)

    Penalties().apply(logits, [row])

    assert logits[0].tolist() == [0.0, 0.0, -25.0, 0.0]
