"""Prompts of a known length in tokens, none like another."""

import random

_WORDS = """
the a of and to in is was for on that with as by at from his her they this have be are had not but
what all were when we there can an your which their said if do will each about how up out them then
she many some so these would other into has more two like him see time could no make than first been
its who now people my made over did down only way find use may water long little very after words
called just where most know
""".split()  # noqa: SIM905 - a list takes a line a word
_DIGITS = 6


def prompt_of(seed: str, num_tokens: int) -> str:
    """Return a prompt that is a function of the seed: a number, then common words.

    The tokenizers of SmolLM2, Llama and GPT-2 make one token of each of these words; SmolLM2's also
    of each digit. No beginning is shared, so no cache of prefixes helps.
    """
    draw = random.Random(seed)
    number = draw.randrange(10 ** (_DIGITS - 1), 10**_DIGITS)
    return f"{number} " + " ".join(draw.choices(_WORDS, k=max(1, num_tokens - _DIGITS)))
