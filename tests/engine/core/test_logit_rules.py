"""What a request allows and forbids, and what happens when nothing is left."""

import logging
import sys

import pytest
import torch

from engine.core.batch import SampleRow
from engine.core.endings import NOTHING_LEFT
from engine.core.logit_rules import NO_MASK, NO_NUMBER
from engine.core.sampler import Sampler
from tests.engine.core.sample_rows import Bits, a_row

BEST_FIRST = [5.0, 4.0, 3.0, 2.0, 1.0, 0.0]


def sample(*rows: SampleRow, logits=BEST_FIRST):
    return Sampler().sample(torch.tensor([logits] * len(rows)), list(rows))


def token(*rows: SampleRow, logits=BEST_FIRST):
    (one,) = sample(*rows, logits=logits)
    return one.token_id


def test_only_allowed_tokens_are_chosen():
    assert token(a_row(allowed_token_ids=(3, 2, 5))) == 2


def test_only_tokens_of_the_grammar_are_chosen():
    assert token(a_row(grammar=Bits([4, 1], 1))) == 1


def test_a_grammar_and_an_allowed_list_are_met_together():
    assert token(a_row(grammar=Bits([1, 3, 4], 1), allowed_token_ids=(0, 3, 4))) == 3


def test_a_row_that_may_have_no_token_is_a_fault_of_that_row_alone():
    rows = [a_row(grammar=Bits([1], 1), allowed_token_ids=(2,)), a_row()]

    empty, other = sample(*rows)

    assert (empty.token_id, empty.fault) == (None, NOTHING_LEFT)
    assert (other.token_id, other.fault) == (0, None)


def test_ids_beyond_the_logits_are_no_tokens():
    assert sample(a_row(allowed_token_ids=(600,)))[0].fault == NOTHING_LEFT
    assert token(a_row(allowed_token_ids=(600, 4), logit_bias=((600, 9.0),))) == 4


@pytest.mark.parametrize(("num_words", "vocab"), [(1, 50), (2, 50), (3, 50), (2, 64), (1, 20)])
def test_logits_and_mask_may_differ_in_width(num_words, vocab):
    logits = [float(at) for at in range(vocab)]
    allowed = [3, 17, 31, *([50] if num_words > 1 else [])]

    best = max(token_id for token_id in allowed if token_id < vocab)

    assert token(a_row(grammar=Bits(allowed, num_words)), logits=logits) == best


def test_the_highest_bit_of_a_word_is_a_token_as_any():
    logits = [0.0] * 64

    assert token(a_row(grammar=Bits([31], 2)), logits=logits) == 31
    assert token(a_row(grammar=Bits([63], 2)), logits=logits) == 63


def test_masks_of_several_grammars_stay_with_their_rows():
    rows = [a_row(grammar=Bits([at], 1)) for at in (5, 2, 4)]

    assert [one.token_id for one in sample(rows[0], a_row(), rows[1], rows[2])] == [5, 0, 2, 4]


def test_a_grammar_that_fails_is_a_fault_of_its_row_alone(caplog):
    class Broken(Bits):
        def mask(self) -> torch.Tensor:
            raise RuntimeError("no")

    with caplog.at_level(logging.ERROR):
        broken, other = sample(a_row(grammar=Broken([1], 1)), a_row())

    assert (broken.token_id, broken.fault) == (None, NO_MASK)
    assert other.token_id == 0
    assert "a grammar gave no mask" in caplog.text


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_model_without_numbers_is_no_fault_of_the_grammar(bad):
    logits = [bad, *BEST_FIRST[1:]]

    (one,) = sample(a_row(grammar=Bits([2], 1)), logits=logits)

    assert (one.token_id, one.fault) == (None, NO_NUMBER)


def test_a_bad_word_is_forbidden_only_where_it_would_be_completed():
    def words(*output: int) -> int:
        history = [0, 0, 5, *output]
        return token(a_row(bad_words=((2, 0), (1,)), history=history, num_prompt_tokens=3))

    assert words() == 0
    assert words(2) == 2  # 0 would complete (2, 0), and 1 is a bad word by itself
    assert words(2, 4) == 0


def test_the_prompt_does_not_begin_a_bad_word():
    row = a_row(bad_words=((5, 0),), history=[0, 5], num_prompt_tokens=2)

    assert token(row) == 0


def test_bias_moves_logits():
    assert token(a_row(logit_bias=((4, 4.5),))) == 4
    assert token(a_row(logit_bias=((0, -100.0), (1, -1.5)))) == 2


def test_a_bias_does_not_free_what_is_forbidden():
    row = a_row(logit_bias=((0, 100.0), (1, 100.0), (2, 100.0)), allowed_token_ids=(1, 2, 3, 4))
    row.banned_token_ids = (1,)

    assert token(row) == 2


def test_banned_tokens_come_free_where_the_rules_leave_nothing_else():
    ending = a_row(grammar=Bits([4], 1), banned_token_ids=(4, 5))
    both = a_row(grammar=Bits([4, 5], 1), allowed_token_ids=(4,), banned_token_ids=(4, 5))
    going_on = a_row(grammar=Bits([3, 4], 1), banned_token_ids=(4,))

    assert [one.token_id for one in sample(ending, both, going_on)] == [4, 4, 3]


def test_a_bad_word_stays_forbidden_where_nothing_is_left():
    row = a_row(allowed_token_ids=(2, 4), bad_words=((2,), (4,)), banned_token_ids=(4,))

    assert sample(row)[0].fault == NOTHING_LEFT


def test_a_ban_without_other_rules_is_kept():
    row = a_row(banned_token_ids=(0, 1, 2, 3, 4))

    assert token(row) == 5


def test_logprobs_are_those_from_before_the_rules():
    row = a_row(allowed_token_ids=(4,), logit_bias=((4, 3.0),), logprobs=2)

    (one,) = sample(row)

    wanted = torch.tensor(BEST_FIRST).log_softmax(0).tolist()
    assert one.logprobs.token_id == 4
    assert one.logprobs.logprob == pytest.approx(wanted[4])
    assert [top.token_id for top in one.logprobs.top] == [0, 1]


def test_lists_of_other_requests_are_never_mistaken_for_ones_own():
    sampler = Sampler()
    for at in range(600):  # more lists than are ever held
        logits = torch.tensor([BEST_FIRST])
        row = a_row(allowed_token_ids=(at % 6, 5), logit_bias=((at % 5, 1.0),))
        assert sampler.sample(logits, [row])[0].token_id == at % 6


def test_nothing_is_held_of_requests_that_have_gone():
    rules = {"allowed_token_ids": tuple(range(6)), "logit_bias": ((1, 2.0), (2, 1.0))}
    row = a_row(temperature=0.7, seed=1, **rules)
    parts = [row.sampling, row.sampling.allowed_token_ids, row.sampling.logit_bias]
    before = [sys.getrefcount(part) for part in parts]
    sampler = Sampler()

    for next_row in (row, row, a_row()):
        sampler.sample(torch.tensor([BEST_FIRST]), [next_row])

    assert [sys.getrefcount(part) for part in parts] == before
