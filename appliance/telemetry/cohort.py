"""What of an ended request is compared with others: one row of figures. Pure."""

from appliance.telemetry.evidence import CohortMember
from appliance.telemetry.phases import chat_end_ns, chat_start_ns, choice_phases
from appliance.telemetry.records import ChoiceRecord, RequestRecord
from appliance.telemetry.request_facts import NS_PER_MS, duration_ns, tpot_ns, ttft_ns


def cohort_member(record: RequestRecord, offset_ns: int) -> CohortMember:
    """Return the figures; of several choices, the phases of the one that ended last count.

    Args:
        record: Of the request.
        offset_ns: Added to a reading to make it Unix time.
    """
    start_ns = chat_start_ns(record)
    front_end_ns = record.ended_ns if start_ns is None else start_ns
    phases = _choice_ms(record, start_ns)
    return CohortMember(
        request=record.request_id,
        ended_unix_ns=record.ended_ns + offset_ns,
        outcome=record.outcome.value,
        prompt_tokens=record.prompt_tokens,
        cached_tokens=record.cached_tokens,
        completion_tokens=record.completion_tokens,
        duration_ms=duration_ns(record) / NS_PER_MS,
        ttft_ms=_ms(ttft_ns(record)),
        front_ms=(front_end_ns - record.received_ns) / NS_PER_MS,
        dispatch_ms=phases.get("dispatch"),
        queue_ms=phases.get("queue"),
        prefill_ms=phases.get("prefill"),
        decode_ms=phases.get("decode"),
        stream_ms=None if start_ns is None else (record.ended_ns - chat_end_ns(record)) / NS_PER_MS,
        tpot_ms=_ms(tpot_ns(record)),
        max_batch=max((c.timeline.max_batch for c in record.choices if c.timeline), default=0),
    )


def _choice_ms(record: RequestRecord, start_ns: int | None) -> dict[str, float]:
    if start_ns is None or record.chat_span_id is None:
        return {}
    last = max(record.choices, key=_end_ns, default=None)
    return {
        phase.name: (phase.end_ns - phase.start_ns) / NS_PER_MS
        for phase in choice_phases(last, start_ns, chat_end_ns(record))
    }


def _end_ns(choice: ChoiceRecord) -> float:
    """When it ended; one that its engine never told of ended last."""
    ended_ns = choice.timeline.finished_ns if choice.timeline is not None else None
    return float("inf") if ended_ns is None else ended_ns


def _ms(value_ns: float | None) -> float | None:
    return None if value_ns is None else value_ns / NS_PER_MS
