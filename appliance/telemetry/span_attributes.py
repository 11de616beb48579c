"""The attributes of a request's spans, read off its record: HTTP, GenAI and our own. Pure."""

from appliance.telemetry import names
from appliance.telemetry.records import ChoiceRecord, Outcome, RequestRecord
from appliance.telemetry.request_facts import (
    NS_PER_S,
    duration_ns,
    has_failed,
    preemptions,
    ttft_ns,
)
from appliance.telemetry.request_ids import request_key
from appliance.telemetry.span_data import Attributes, AttributeValue, present
from engine.wire.messages import Timeline

RESPONSE_PREFIXES = {"chat": "chatcmpl-", "text_completion": "cmpl-"}


def server_attributes(record: RequestRecord) -> Attributes:
    """Return those of the HTTP server span."""
    return present(
        {
            names.HTTP_METHOD: record.method,
            names.HTTP_ROUTE: record.route,
            names.URL_PATH: record.route,
            names.URL_SCHEME: "http",
            names.HTTP_STATUS: record.status,
            names.ERROR_TYPE: (record.error_code or str(record.status))
            if has_failed(record)
            else None,
            names.ERROR_CODE: record.error_code,
            names.REQUEST_ID: record.request_id,
            names.OUTCOME: record.outcome.value,
            names.CLIENT_REQUEST_ID: record.client_request_id,
            names.KEY_ID: record.key_id,
            names.REQUEUES: record.requeues or None,
            names.PREEMPTIONS: preemptions(record) or None,
            names.DURATION: duration_ns(record),
        }
    )


def chat_attributes(record: RequestRecord) -> Attributes:
    """Return those of the inference span."""
    first_ns = ttft_ns(record)
    reasons = tuple(c.finish_reason for c in record.choices if c.finish_reason is not None)
    prefix = RESPONSE_PREFIXES.get(record.operation)
    return present(
        {
            names.GEN_AI_OPERATION: record.operation,
            names.GEN_AI_PROVIDER: names.PROVIDER,
            names.GEN_AI_REQUEST_MODEL: record.model,
            names.GEN_AI_RESPONSE_MODEL: record.model,
            names.GEN_AI_RESPONSE_ID: prefix and prefix + request_key(record.request_id),
            names.GEN_AI_MAX_TOKENS: record.max_tokens,
            names.GEN_AI_TEMPERATURE: record.temperature,
            names.GEN_AI_TOP_P: record.top_p,
            names.GEN_AI_STREAM: record.stream,
            names.GEN_AI_CHOICES: len(record.choices) if len(record.choices) > 1 else None,
            names.GEN_AI_FINISH_REASONS: reasons or None,
            names.GEN_AI_FIRST_CHUNK: None if first_ns is None else first_ns / NS_PER_S,
            names.GEN_AI_INPUT_TOKENS: record.prompt_tokens,
            names.GEN_AI_OUTPUT_TOKENS: record.completion_tokens,
            names.GEN_AI_CACHED_TOKENS: record.cached_tokens,
            names.GEN_AI_INPUT_MESSAGES: record.input_content,
            names.GEN_AI_OUTPUT_MESSAGES: record.output_content,
            names.ERROR_TYPE: record.error_code if record.outcome is Outcome.FAILED else None,
        }
    )


def choice_attributes(choice: ChoiceRecord) -> Attributes:
    """Return those of one of several choices."""
    return present(
        {
            names.CHOICE: choice.index,
            names.ENGINE_REQUEST_ID: choice.engine_request_id,
            names.ENGINE_ID: choice.engine_id,
            names.ENGINE_EPOCH: choice.engine_epoch,
            names.FINISH_REASON: choice.finish_reason,
            names.GEN_AI_OUTPUT_TOKENS: choice.completion_tokens,
        }
    )


def phase_attributes(name: str, record: RequestRecord, choice: ChoiceRecord | None) -> Attributes:
    """Return those of a phase of a choice; None: no engine told of it."""
    if name == "dispatch":
        return present({names.HELD: record.held_ns or None, names.HELD_FOR: record.held_for})
    timeline = choice.timeline if choice is not None else None
    if choice is None or timeline is None:
        return {}
    attributes: dict[str, AttributeValue | None] = {
        names.ENGINE_REQUEST_ID: choice.engine_request_id,
        names.ENGINE_ID: choice.engine_id,
        names.ENGINE_EPOCH: choice.engine_epoch,
    }
    if name == "queue":
        attributes[names.WAITED_FOR] = timeline.waited_for
    elif name == "prefill":
        attributes |= _prefill(choice, timeline)
    elif name == "decode":
        attributes |= _decode(choice, timeline)
    return present(attributes)


def stream_attributes(record: RequestRecord) -> Attributes:
    """Return those of the phase in which the answer's rest leaves."""
    return present(
        {
            names.FRAMES: record.frames,
            names.DETOKENIZE: record.detokenize_ns,
            names.STREAM_BLOCKED: record.send_blocked_ns or None,
            names.COLLECTED: record.collected_ns or None,
        }
    )


def _prefill(choice: ChoiceRecord, timeline: Timeline) -> dict[str, AttributeValue | None]:
    return {
        names.TOKENS: choice.prompt_tokens - choice.cached_tokens,
        names.PREFILL_CHUNKS: len(timeline.chunks),
        names.PREFILL_CACHED: choice.cached_tokens,
        names.FIRST_STEP: timeline.first_step,
    }


def _decode(choice: ChoiceRecord, timeline: Timeline) -> dict[str, AttributeValue | None]:
    return {
        names.TOKENS: choice.completion_tokens,
        names.FIRST_STEP: timeline.chunks[-1].step if timeline.chunks else None,
        names.LAST_STEP: timeline.last_step,
        names.MAX_BATCH: timeline.max_batch,
        names.PREEMPTIONS: len(timeline.preempted_ns),
        names.RECOMPUTED: timeline.recomputed_tokens or None,
        names.DRAFTED: timeline.drafted_tokens or None,
        names.ACCEPTED: timeline.accepted_tokens or None,
    }
