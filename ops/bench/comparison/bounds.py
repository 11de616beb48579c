"""What Quarterdeck promises against its peers, and whether a comparison shows it."""

from collections.abc import Sequence
from dataclasses import dataclass

from comparison.results import Results
from comparison.scenarios import Cell
from comparison.subjects import OURS, SUBJECTS

BEST_SERVER, BEST_PEER = "best server", "best peer"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """Ours over theirs must be at least, or at most, so much. `theirs` may be a group's best."""

    cell: Cell
    figure: str
    theirs: str
    limit: float
    ours: str = OURS
    is_least: bool = True
    of_cell: Cell | None = None
    """Where theirs is taken, if not in the same cell."""
    of_figure: str | None = None

    def text(self) -> str:
        """Return it in words."""
        other = self.theirs
        if self.of_cell is not None:
            other += f" {self.of_cell.scenario} {self.of_cell.size}"
        if self.of_figure is not None:
            other += f" {self.of_figure}"
        relation = "≥" if self.is_least else "≤"
        where = f"{self.cell.scenario} {self.cell.size}"
        return f"{where}: {self.ours} {self.figure} {relation} {self.limit:g} x {other}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """A bound and the ratio that was measured."""

    bound: Bound
    ratio: float | None
    """None: one of both was not measured."""

    @property
    def passed(self) -> bool | None:
        """Whether it holds; None: not measured."""
        if self.ratio is None:
            return None
        limit = self.bound.limit
        return self.ratio >= limit if self.bound.is_least else self.ratio <= limit


def _throughput() -> list[Bound]:
    at = {size: Cell("throughput", size) for size in (1, 8, 16, 32)}
    rate = "output_tok_s"
    return [
        Bound(cell=at[1], figure=rate, theirs="llama-q4_1", limit=1.6),
        Bound(cell=at[1], figure=rate, theirs="llama-q4_0", limit=1.2),
        Bound(cell=at[8], figure=rate, theirs=BEST_SERVER, limit=1.7),
        Bound(cell=at[16], figure=rate, theirs=BEST_SERVER, limit=1.7),
        Bound(cell=at[32], figure=rate, theirs=BEST_SERVER, limit=1.6),
        *(Bound(cell=at[n], figure=rate, theirs="openvino", limit=1.3) for n in (8, 16, 32)),
        *(
            Bound(cell=at[n], figure=rate, ours="quarterdeck-bf16", theirs="vllm", limit=1.2)
            for n in at
        ),
    ]


def _latency() -> list[Bound]:
    staggered = Cell("staggered", 32)
    return [
        Bound(
            cell=Cell("ttft", 1),
            figure="ttft_ms_p50",
            theirs=BEST_PEER,
            limit=0.6,
            is_least=False,
        ),
        *(
            Bound(cell=staggered, figure=figure, theirs="vllm", limit=1.0, is_least=False)
            for figure in ("ttft_ms_p95", "itl_ms_p99")
        ),
        Bound(
            cell=staggered,
            figure="itl_ms_p99",
            theirs=OURS,
            of_figure="itl_ms_p50",
            limit=3.0,
            is_least=False,
        ),
    ]


def _lengths() -> list[Bound]:
    short, long = Cell("context", 128), Cell("context", 4096)
    return [
        *(
            Bound(cell=Cell("prefill", size), figure="prefill_tok_s", theirs=theirs, limit=limit)
            for size in (128, 512)
            for theirs, limit in (("llama-q4_1", 4.0), ("llama-q4_0", 2.0))
        ),
        *(
            Bound(
                cell=long,
                figure="decode_tok_s",
                ours=ours,
                theirs=ours,
                of_cell=short,
                limit=limit,
            )
            for ours, limit in ((OURS, 0.5), ("quarterdeck-kv8", 0.62))
        ),
    ]


BOUNDS = (*_throughput(), *_latency(), *_lengths())


def verdicts_of(results: Results, bounds: Sequence[Bound] = BOUNDS) -> list[Verdict]:
    """Judge medians of the rounds by the bounds."""
    return [Verdict(bound, _ratio(results, bound)) for bound in bounds]


def _ratio(results: Results, bound: Bound) -> float | None:
    if bound.of_cell is None and bound.of_figure is None:
        theirs = (
            best(results, bound.cell, bound.figure, bound.theirs, most=bound.is_least)
            if bound.theirs in (BEST_SERVER, BEST_PEER)
            else bound.theirs
        )
        found = theirs and results.ratio(bound.cell, bound.ours, theirs, bound.figure)
        return found.median if found else None
    mine = results.spread(bound.cell, bound.ours, bound.figure)
    cell, figure = bound.of_cell or bound.cell, bound.of_figure or bound.figure
    other = results.spread(cell, bound.theirs, figure)
    return mine.median / other.median if mine and other and other.median else None


def best(results: Results, cell: Cell, figure: str, group: str, *, most: bool) -> str | None:
    """Return the best peer of a group by the median; None: none was measured."""
    found = [
        (spread.median, name)
        for name, subject in SUBJECTS.items()
        if not subject.is_ours and (subject.is_server or group == BEST_PEER)
        if (spread := results.spread(cell, name, figure)) is not None
    ]
    if not found:
        return None
    return (max(found) if most else min(found))[1]
