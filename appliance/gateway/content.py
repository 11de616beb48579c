"""The opt-in content of a request: its prompt and its output, for traces, and only if all agree.

Three things must hold: the operator has switched content on (`trace_content`, or live), the request
came with a key, and that key was minted with `--allow-content`. Keys of the configuration and the
local user of the unix socket allow nothing: what they may do is decided by who starts the
appliance, for everybody who uses them, and content is for the owner of one key to give.

Where it may go: into the trace store, to callers with the scope `admin`, and with the spans to the
collector that the operator configured. Once it is switched off, requests that still run lose what
was kept of them, see `RecordBuffer`.

The texts have the shape of OpenTelemetry's `gen_ai.input.messages` and `gen_ai.output.messages`
(https://opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-spans/), at most 16 KiB each; what is cut
says so.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, cast

import msgspec

from appliance.control_link.messages import FleetState
from appliance.gateway.generation import Delta, Sink
from appliance.gateway.journey import Journey

MAX_BYTES: Final = 16 << 10
"""Of each text, as JSON."""
ENVELOPE_BYTES: Final = 160
"""Of a message without its text, and of the mark that says what was cut."""
MAX_OUTPUT_CHARS: Final = MAX_BYTES
"""Kept of each choice while it runs."""

Message = dict[str, Any]


@dataclass(slots=True)
class Content:
    """What one request asked and was told."""

    prompt: str
    """JSON."""
    outputs: dict[int, list[str]] = field(default_factory=dict)
    """Pieces of text by choice."""
    sizes: dict[int, int] = field(default_factory=dict)
    finish_reasons: dict[int, str] = field(default_factory=dict)

    @property
    def output(self) -> str:
        """What was answered so far, as JSON."""
        messages = (
            _message("assistant", "".join(pieces), self.finish_reasons.get(index, "error"))
            for index, pieces in sorted(self.outputs.items())
        )
        return bounded_json(list(messages))


class ContentSink:
    """A `Sink` that keeps the text of what passes through it."""

    def __init__(self, sink: Sink, content: Content) -> None:
        self._sink = sink
        self._content = content

    @property
    def has_delivered(self) -> bool:
        """Whether the client has got anything of the answer."""
        return self._sink.has_delivered

    async def emit(self, delta: Delta) -> None:
        """Keep a delta's text and pass it on."""
        content, index = self._content, delta.index
        size = content.sizes.get(index, 0)
        if size <= MAX_OUTPUT_CHARS:
            content.outputs.setdefault(index, []).append(delta.text)
            content.sizes[index] = size + len(delta.text)
        if delta.finish_reason is not None:
            content.finish_reasons[index] = delta.finish_reason
        await self._sink.emit(delta)

    def restart(self, index: int) -> None:
        """Forget a choice that begins again."""
        for kept in (self._content.outputs, self._content.sizes, self._content.finish_reasons):
            kept.pop(index, None)
        self._sink.restart(index)


def with_content(sink: Sink, journey: Journey, state: FleetState | None) -> Sink:
    """Return a sink that keeps the content of a request, or `sink` itself when it must not be kept.

    The prompt goes into `journey.content` at once.
    """
    if not may_keep(journey, state):
        return sink
    assert journey.parameters is not None
    content = Content(bounded_json(prompt_messages(journey.parameters.fields)))
    journey.content = content
    return ContentSink(sink, content)


def may_keep(journey: Journey, state: FleetState | None) -> bool:
    """Whether the content of this request may be kept."""
    key = journey.context.key
    is_on = state is not None and state.recording.enabled and state.recording.content
    return is_on and key is not None and key.allows_content


def prompt_messages(fields: Mapping[str, Any]) -> list[Message]:
    """Return the messages of a chat, or a message for each prompt of a completion."""
    if "messages" in fields:
        return [_of_chat(message) for message in cast("list[Message]", fields["messages"])]
    prompt = fields.get("prompt")
    if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
        return [_message("user", _text(each)) for each in cast("list[Any]", prompt)]
    return [_message("user", _text(prompt))]


def bounded_json(messages: list[Message]) -> str:
    """Return messages as JSON of at most `MAX_BYTES`; the first ones are kept, and the cut said."""
    kept: list[Message] = []
    room = MAX_BYTES - ENVELOPE_BYTES
    for index, message in enumerate(messages):
        if room < ENVELOPE_BYTES:
            kept.append(_message("user", f"[{len(messages) - index} more messages cut]"))
            break
        fitting = _cut(message, room - ENVELOPE_BYTES)
        room -= len(msgspec.json.encode(fitting)) + 1
        kept.append(fitting)
    return msgspec.json.encode(kept).decode()


def _cut(message: Message, room: int) -> Message:
    """Return the message with as much of its text as `room` bytes hold."""
    (part,) = message["parts"]
    text: str = part["content"]
    size = len(msgspec.json.encode(text))
    if size <= room:
        return message
    kept = text[: room * len(text) // size]
    while kept and len(msgspec.json.encode(kept)) > room:
        kept = kept[: len(kept) * 3 // 4]
    cut = f"{kept}[{len(text) - len(kept)} characters cut]"
    return {**message, "parts": [{**part, "content": cut}]}


def _of_chat(message: Message) -> Message:
    content = message.get("content")
    if isinstance(content, list):
        parts = cast("list[Message]", content)
        content = "\n".join(_text(part.get("text")) for part in parts)
    return _message(_text(message.get("role")), _text(content))


def _message(role: str, text: str, finish_reason: str | None = None) -> Message:
    message: Message = {"role": role, "parts": [{"type": "text", "content": text}]}
    return message if finish_reason is None else {**message, "finish_reason": finish_reason}


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return "" if value is None else str(value)
