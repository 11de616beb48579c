"""Who is measured when: everything that is compared runs within the same minutes, in turns."""

from collections.abc import Iterator, Sequence
from typing import TypeVar

Each = TypeVar("Each")


def rotated(subjects: Sequence[Each], turn: int) -> list[Each]:
    """Return the subjects so that each is first once in as many turns, every second one backwards.

    A machine that grows slower or faster within a turn then does so for all alike.
    """
    if not subjects:
        return []
    start = turn % len(subjects)
    order = [*subjects[start:], *subjects[:start]]
    return order[:1] + order[:0:-1] if turn % 2 else order


def turns(
    cells: Sequence[tuple[Each, Sequence[str]]], rounds: int
) -> Iterator[tuple[int, Each, str]]:
    """Yield (round, cell, subject): in each round all cells, in each cell all its subjects.

    Args:
        cells: What is measured, each with the names of its subjects.
        rounds: How often.
    """
    for round_index in range(rounds):
        for cell, subjects in cells:
            for subject in rotated(subjects, round_index):
                yield round_index, cell, subject
