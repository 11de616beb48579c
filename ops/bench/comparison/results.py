"""The results of a comparison: one value a round and figure, medians, ratios of the same round."""

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from comparison.machine import Noise
from comparison.scenarios import Cell


@dataclass(frozen=True, slots=True)
class Spread:
    """Of the rounds."""

    median: float
    low: float
    high: float


@dataclass(slots=True)
class Results:
    """All that a comparison measured and says of itself."""

    values: dict[tuple[Cell, str], dict[int, dict[str, float]]] = field(default_factory=dict)
    """By cell and subject: for each round, figures by name."""
    noise: list[tuple[Cell, str, int, Noise]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    machine: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    commands: dict[str, str] = field(default_factory=dict)
    facts: dict[str, dict[str, Any]] = field(default_factory=dict)
    ceilings: list[dict[str, Any]] = field(default_factory=list)
    llama_bench: list[dict[str, Any]] = field(default_factory=list)
    took_s: float = 0.0

    def add(
        self, cell: Cell, subject: str, round_index: int, values: dict[str, float], noise: Noise
    ) -> None:
        """Keep what one turn measured."""
        self.values.setdefault((cell, subject), {})[round_index] = values
        self.noise.append((cell, subject, round_index, noise))

    def subjects(self, scenario: str) -> list[str]:
        """Return who was measured in a scenario, in the order of their first turn."""
        return list(dict.fromkeys(name for cell, name in self.values if cell.scenario == scenario))

    def sizes(self, scenario: str) -> list[int]:
        """Return the sizes that were measured."""
        return sorted({cell.size for cell, _ in self.values if cell.scenario == scenario})

    def spread(self, cell: Cell, subject: str, figure: str) -> Spread | None:
        """Return a figure over the rounds; None: not measured."""
        rounds = self.values.get((cell, subject), {}).values()
        return spread_of([each[figure] for each in rounds if figure in each])

    def ratio(self, cell: Cell, ours: str, theirs: str, figure: str) -> Spread | None:
        """Return ours over theirs, each of the same round, so that a slow minute slows both."""
        mine = self.values.get((cell, ours), {})
        other = self.values.get((cell, theirs), {})
        return spread_of(
            [
                mine[at][figure] / other[at][figure]
                for at in mine.keys() & other.keys()
                if other[at].get(figure) and figure in mine[at]
            ]
        )

    def as_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "machine": self.machine,
            "versions": self.versions,
            "commands": self.commands,
            "facts": self.facts,
            "ceilings": self.ceilings,
            "llama_bench": self.llama_bench,
            "took_s": self.took_s,
            "failures": self.failures,
            "cells": [
                {
                    "scenario": cell.scenario,
                    "size": cell.size,
                    "subject": subject,
                    "rounds": list(rounds.values()),
                    "medians": _medians(list(rounds.values())),
                }
                for (cell, subject), rounds in self.values.items()
            ],
            "noise": [
                {"scenario": cell.scenario, "size": cell.size, "subject": subject, "round": at}
                | asdict(noise)
                for cell, subject, at, noise in self.noise
            ],
        }


def spread_of(values: Sequence[float]) -> Spread | None:
    """Return median and bounds; None of nothing."""
    if not values:
        return None
    return Spread(statistics.median(values), min(values), max(values))


def _medians(rounds: list[dict[str, float]]) -> dict[str, float]:
    names = dict.fromkeys(name for each in rounds for name in each)
    return {
        name: statistics.median(each[name] for each in rounds if name in each) for name in names
    }
