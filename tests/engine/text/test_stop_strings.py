import random
from itertools import pairwise

import pytest

from engine.text.stop_strings import StopMatcher


def run(stops: list[str], pieces: list[str], *, include_stop: bool = False):
    """Return what each piece released, what the end released, and the stop string."""
    matcher = StopMatcher(stops, include_stop=include_stop)
    released: list[str] = []
    for piece in pieces:
        text, stop = matcher.push(piece)
        released.append(text)
        if stop is not None:
            return released, "", stop
    return released, matcher.flush(), None


def reference(stops: list[str], text: str) -> tuple[str, str | None]:
    """Cut at the stop string that is completed first, the longest of several."""
    for end in range(1, len(text) + 1):
        completed = [stop for stop in stops if text[:end].endswith(stop)]
        if completed:
            longest = max(completed, key=len)
            return text[: end - len(longest)], longest
    return text, None


def test_without_stop_strings_text_passes_unchanged():
    assert run([], ["a", "", "b"]) == (["a", "", "b"], "", None)


def test_a_stop_string_over_several_pieces_never_appears():
    assert run(["DEFGHIJ"], ["abcDEF", "G", "HI", "J"]) == (["abc", "", "", ""], "", "DEFGHIJ")


def test_a_stop_string_can_be_kept():
    assert run(["\n\n"], ["a\n", "\nb"], include_stop=True) == (["a", "\n\n"], "", "\n\n")


def test_held_text_goes_on_as_soon_as_it_cannot_match():
    assert run(["b,c"], ["a", "b", ",", "d", "e"]) == (["a", "", "", "b,d", "e"], "", None)


def test_text_that_begins_no_stop_string_is_not_delayed():
    assert run(["a very long stop string"], ["hello", " world"]) == (["hello", " world"], "", None)


def test_held_text_comes_out_at_the_end():
    assert run(["STOP"], ["a", "ST"]) == (["a", ""], "ST", None)


def test_the_stop_string_completed_first_wins_whatever_the_order():
    for stops in (["world", "lo"], ["lo", "world"]):
        assert run(stops, ["hello world"]) == (["hel"], "", "lo")


def test_of_stop_strings_completed_together_the_longest_wins():
    for stops in (["b", "ab"], ["ab", "b"]):
        assert run(stops, ["xa", "b"]) == (["x", ""], "", "ab")


def test_overlapping_beginnings_are_found():
    assert run(["aab"], ["a", "a", "a", "b"]) == (["", "", "a", ""], "", "aab")


def test_what_is_completed_too_early_is_let_through():
    matcher = StopMatcher(["\n"])

    assert matcher.push("a\nb", may_stop=False) == ("a\nb", None)
    assert matcher.push("c\nd") == ("c", "\n")


def test_an_early_stop_string_inside_held_text_does_not_count_later():
    matcher = StopMatcher(["b", "abc"])

    assert matcher.push("ab", may_stop=False) == ("", None)
    assert matcher.push("x") == ("abx", None)


@pytest.mark.parametrize("seed", range(20))
def test_any_split_gives_the_result_of_the_whole(seed: int):
    rng = random.Random(seed)
    for _ in range(100):
        stops = [
            "".join(rng.choices("abc", k=rng.randrange(1, 5))) for _ in range(rng.randrange(4))
        ]
        text = "".join(rng.choices("abcd", k=rng.randrange(30)))
        cuts = sorted(rng.randrange(len(text) + 1) for _ in range(rng.randrange(8)))
        bounds = [0, *cuts, len(text)]
        pieces = [text[start:end] for start, end in pairwise(bounds)]
        released, rest, stop = run(stops, pieces)
        assert ("".join(released) + rest, stop) == reference(stops, text)
