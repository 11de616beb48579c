"""Why a request took as long as it did, as rows that can be selected."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from appliance.supervisor.admin.schemas import Cause, Evidence, Explanation, PhaseAgainstCohort
from dashboard.client.problems import ApiProblem, UnreachableError
from dashboard.view.lines import BOLD, DIM, GOOD, PLAIN, WARN, Line, Piece, Row, fit, line, wrapped
from dashboard.view.text import NOTHING, clean, meter, milliseconds

_SURE: Final = {"sure": ("▲", WARN), "likely": ("△", WARN), "weak": ("·", DIM)}
"""Glyph and tone by confidence."""
_FAR: Final = 2.0
"""A phase that takes this many times the cohort's median is worth a mark."""
_PHASE_WIDTH: Final = 12
_PHASE_CELLS: Final = 1 + _PHASE_WIDTH + 4 * 9
_LEAST_BAR: Final = 8


@dataclass(slots=True)
class Why:
    """The rows of the panel, and which spans each of them is about."""

    rows: list[Row] = field(default_factory=list[Row])
    spans: dict[str, frozenset[str]] = field(default_factory=dict[str, frozenset[str]])
    """By the key of a row: ids of spans."""
    phases: dict[str, str] = field(default_factory=dict[str, str])
    """By the key of a row: the phase whose spans are meant."""

    def add(self, key: str, lines: Sequence[Line]) -> None:
        """Append lines; each can be selected and means the same."""
        base = key
        for at, text in enumerate(lines):
            key = base if at == 0 else f"{base}+{at}"
            self.rows.append(Row(key, text))
            self.spans[key] = self.spans.get(base, frozenset())
            if base in self.phases:
                self.phases[key] = self.phases[base]


@dataclass(frozen=True, slots=True)
class Reason:
    """The answer so far: an explanation, or why there is none."""

    answer: Explanation | None = None
    note: str = ""
    is_final: bool = True
    """Asking again will not help."""

    @property
    def critical(self) -> frozenset[str]:
        """Ids of the spans on the critical path."""
        return frozenset(self.answer.critical_path) if self.answer else frozenset()

    def rows(self, width: int) -> Why:
        """What to show."""
        if self.answer is not None:
            return why_rows(self.answer, width)
        why = Why()
        text = self.note or "asking why …"
        why.add("note", wrapped(text, width, tone=WARN if self.note else DIM))
        return why


def unexplained(error: ApiProblem | UnreachableError) -> Reason:
    """Why there is no explanation."""
    if isinstance(error, UnreachableError):
        return Reason(note=clean(str(error)), is_final=False)
    if error.is_absent_route:
        return Reason(note="This server does not explain: it is older than this dashboard.")
    if error.status == _NOT_FOUND:
        text = "What an explanation needs is not stored any more."
        return Reason(note=text, is_final=False)
    return Reason(note=f"{clean(str(error))} ({clean(error.code)})")


_NOT_FOUND: Final = 404


def why_rows(explanation: Explanation, width: int) -> Why:
    """Verdict, causes with their evidence, and the phases beside the cohort's."""
    why = Why()
    why.add("verdict", wrapped(clean(explanation.verdict), width, tone=BOLD))
    for at, cause in enumerate(explanation.causes):
        _add_cause(why, f"cause:{at}", cause, width)
    if too_few(explanation):
        text = f"Too few requests to compare with: {explanation.cohort_size}."
        why.add("few", wrapped(text, width, tone=DIM))
    if not explanation.complete:
        text = "▲ Some records of its time were lost; a cause may be missing."
        why.add("lost", wrapped(text, width, tone=WARN))
    _add_phases(why, explanation.phases, width)
    return why


def too_few(explanation: Explanation) -> bool:
    """Whether the cohort says nothing."""
    return all(phase.median_ms is None for phase in explanation.phases)


def against(explanation: Explanation) -> str:
    """For the frame: whom it is compared with."""
    return f"against {clean(explanation.cohort)}" if explanation.cohort else ""


def excess(explanation: Explanation) -> str:
    """For the frame: how much longer it took than its cohort."""
    if explanation.excess_ms is None:
        return "why"
    if explanation.excess_ms <= 0:
        return "why · no longer than usual"
    return f"why · {milliseconds(explanation.excess_ms)} beyond the median"


def is_of_phase(span_name: str, phase: str) -> bool:
    """Whether a span with this name is what a phase of the explanation is made of."""
    word = span_name.partition(" ")[0]
    return word == phase or word in _PARTS.get(phase, ())


_PARTS: Final = {"front": ("auth", "admission", "tokenize")}


def _add_cause(why: Why, key: str, cause: Cause, width: int) -> None:
    glyph, tone = _SURE[cause.confidence]
    lead = f"{glyph} {cause.kind.replace('_', ' ')}"
    cost = f" +{milliseconds(cause.cost_ms)} {cause.share * 100:.0f}% {cause.confidence}"
    first, *rest = wrapped(f"{lead}{cost}: {clean(cause.text)}", width, indent="    ", tone=PLAIN)
    cut = len(lead) + 1
    why.spans[key] = _spans_of(cause.evidence)
    text = first[0].text
    why.add(key, [line(Piece(text[:cut], f"bold {tone}"), text[cut:]), *rest])
    for at, evidence in enumerate(cause.evidence):
        name = f"{key}:{at}"
        why.spans[name] = _spans_of([evidence])
        why.add(name, wrapped(f"└ {_fact(evidence)}", width, indent="      ", first="    "))
    if cause.advice:
        advice = f"→ {clean(cause.advice)}"
        why.spans[f"{key}:advice"] = why.spans[key]
        why.add(f"{key}:advice", wrapped(advice, width, indent="      ", first="    ", tone=GOOD))


def _spans_of(evidence: Sequence[Evidence]) -> frozenset[str]:
    return frozenset(fact.span_id for fact in evidence if fact.span_id)


def _fact(evidence: Evidence) -> str:
    """The text, its value and what is usual, unless the text says so itself."""
    text, name = clean(evidence.text), clean(evidence.text)
    if evidence.value is not None and not any(character.isdigit() for character in name):
        text += f": {_amount(evidence.value, evidence.unit, name)}"
    if evidence.cohort_median is None or "median" in name:
        return text
    ratio = f", {evidence.ratio:.1f}x" if evidence.ratio is not None else ""
    return f"{text} (median {_amount(evidence.cohort_median, evidence.unit, name)}{ratio})"


def _amount(value: float, unit: str | None, beside: str) -> str:
    """A value with its unit, which the text beside it may have named."""
    if unit == "ms":
        return milliseconds(value)
    return f"{value:,.10g}" + (f" {clean(unit)}" if unit and unit not in beside else "")


def _add_phases(why: Why, phases: Sequence[PhaseAgainstCohort], width: int) -> None:
    if not phases:
        return
    titles = f" {'phase':<{_PHASE_WIDTH}}{'this':>9}{'median':>9}{'p95':>9}{'x':>8} "
    why.add("phases", [line(Piece(titles[:width], DIM))])
    longest = max(phase.ms for phase in phases) or 1.0
    for phase in phases:
        key = f"phase:{phase.phase}"
        why.phases[key] = phase.phase
        why.add(key, [line(*_phase(phase, longest, width))])


def _phase(phase: PhaseAgainstCohort, longest_ms: float, width: int) -> Iterator[Piece]:
    far = phase.ratio is not None and phase.ratio >= _FAR
    tone = WARN if far else PLAIN
    ratio = NOTHING if phase.ratio is None else f"{phase.ratio:.1f}"
    yield Piece(f" {fit(clean(phase.phase), _PHASE_WIDTH)}")
    yield Piece(f"{milliseconds(phase.ms):>9}", tone)
    yield Piece(f"{milliseconds(phase.median_ms):>9}{milliseconds(phase.p95_ms):>9}", DIM)
    yield Piece(f"{ratio:>8}{'▲' if far else ' '}", tone)
    room = width - _PHASE_CELLS - 2
    if room >= _LEAST_BAR:
        yield Piece(f" {meter(phase.ms / longest_ms, min(room, 30))}", tone or DIM)
