"""Builds a trace from what the supervisor did after a death: back-off, restart, ready again.

The journal tells it. A child stands for each state that the process was in until it served again,
or was given up.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from appliance.telemetry import names
from appliance.telemetry.span_data import SpanData
from engine.wire.header import new_context, new_span_id

PROCESSES = ("engine", "gateway")
DIED = "died"
GIVEN_UP = ("crash_loop", "failed", "stopped")
OVER = ("ready", "ended", *GIVEN_UP)
MAX_OPEN = 256
SUPERVISOR = "supervisor"


@dataclass(slots=True)
class _Recovery:
    reason: str
    states: list[tuple[str, int, str]] = field(default_factory=list)
    """State, since when, what the journal said."""


class Recoveries:
    """Follows processes from their death to their next life.

    Args:
        emit: Takes the finished spans of one recovery.
    """

    def __init__(self, emit: Callable[[Sequence[SpanData]], None]) -> None:
        self._emit = emit
        self._open: dict[str, _Recovery] = {}

    def event(self, kind: str, subject: str, text: str, at_ns: int) -> None:
        """Take an entry of the journal."""
        process, _, state = kind.partition(".")
        if process not in PROCESSES:
            return
        recovery = self._open.get(subject)
        if recovery is None and state == DIED and len(self._open) < MAX_OPEN:
            recovery = self._open[subject] = _Recovery(text)
        if recovery is None:
            return
        recovery.states.append((state, at_ns, text))
        if state in OVER:
            del self._open[subject]
            self._emit(_spans(process, subject, recovery))


def _spans(process: str, subject: str, recovery: _Recovery) -> list[SpanData]:
    context = new_context()
    last_state, end_ns, last_text = recovery.states[-1]
    root = SpanData(
        trace_id=context.trace_id,
        span_id=context.span_id,
        parent_id=None,
        name=f"recover {process}",
        kind="internal",
        process=SUPERVISOR,
        start_ns=recovery.states[0][1],
        end_ns=end_ns,
        attributes={names.OPERATION_TARGET: subject, names.EVENT_TEXT: recovery.reason},
    )
    if last_state in GIVEN_UP:
        root.error = last_state
        root.attributes |= {names.ERROR_TYPE: last_state, names.EVENT_TEXT: last_text}
    ends = [*(since_ns for _, since_ns, _ in recovery.states[1:]), end_ns]
    return [
        root,
        *(
            SpanData(
                trace_id=context.trace_id,
                span_id=new_span_id(),
                parent_id=root.span_id,
                name=f"{process} {state}",
                kind="internal",
                process=SUPERVISOR,
                start_ns=since_ns,
                end_ns=until_ns,
                attributes={names.EVENT_TEXT: text},
            )
            for (state, since_ns, text), until_ns in zip(recovery.states, ends, strict=True)
        ),
    ]
