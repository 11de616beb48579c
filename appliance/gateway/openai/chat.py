"""POST /v1/chat/completions: messages in, assistant messages out."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from appliance.gateway.generation import Delta
from appliance.gateway.openai.collected import CollectedChoice
from appliance.gateway.openai.dialect import Answer, Encode, written_prompt_logprobs
from appliance.gateway.openai.errors import invalid, missing
from appliance.gateway.openai.frames import HOLE, FrameTemplate, frame
from appliance.gateway.openai.messages import parse_messages
from appliance.gateway.openai.parameters import Parameters, parse_chat_parameters
from engine.wire.messages import TokenLogprobs

if TYPE_CHECKING:
    from appliance.gateway.model_texts import ModelText


class ChatDialect:
    """The chat route."""

    id_prefix = "chatcmpl-"
    prompt_param = "messages"

    def parse(self, body: Mapping[str, Any], *, strict: bool) -> tuple[Parameters, Encode]:
        """Check a chat request."""
        parameters = parse_chat_parameters(body, strict=strict)
        return parameters, chat_encoder(parameters.fields)

    def default_max_tokens(self, room: int) -> int:
        """To the context's end."""
        return room

    def frames(self, answer: Answer) -> "ChatFrames":
        """Write a stream of chunks."""
        return ChatFrames(answer)

    def complete(self, answer: Answer, choices: Sequence[CollectedChoice]) -> dict[str, Any]:
        """Write a `chat.completion`."""
        body: dict[str, Any] = {
            "id": answer.id,
            "object": "chat.completion",
            "created": answer.created,
            "model": answer.model,
            "choices": [_complete_choice(answer, choice) for choice in choices],
            "usage": answer.usage(),
            "service_tier": None,
            "system_fingerprint": None,
        }
        if answer.parameters.flag("return_token_ids", default=False):
            body["prompt_token_ids"] = answer.prompts[0]
        scored = written_prompt_logprobs(answer, choices[0])
        return body | scored


def chat_encoder(fields: Mapping[str, Any]) -> Encode:
    """Check the messages and return what renders and tokenizes them."""
    if "messages" not in fields:
        raise missing("messages")
    messages = parse_messages(fields["messages"])
    continues = fields.get("continue_final_message", False)
    opens = fields.get("add_generation_prompt", not continues)
    if continues and opens:
        message = "'continue_final_message' and 'add_generation_prompt' exclude each other."
        raise invalid("continue_final_message", message)

    num_chars = sum(len(message["content"]) for message in messages)

    def encode(text: "ModelText", limit: int | None) -> list[tuple[int, ...]]:
        text.check_length(num_chars, limit, "messages")
        ids = text.encode_chat(
            messages, add_generation_prompt=opens, continue_final_message=continues
        )
        return [tuple(ids)]

    return encode


def _complete_choice(answer: Answer, choice: CollectedChoice) -> dict[str, Any]:
    body: dict[str, Any] = {
        "index": choice.index,
        "message": {"role": "assistant", "content": choice.text, "refusal": None},
        "logprobs": _logprobs(answer, choice.logprobs),
        "finish_reason": choice.finish_reason,
    }
    if answer.parameters.flag("return_token_ids", default=False):
        body["token_ids"] = choice.token_ids
    return body | written_prompt_logprobs(answer, choice)


def _logprobs(answer: Answer, entries: Sequence[TokenLogprobs]) -> dict[str, Any] | None:
    from appliance.gateway.logprobs import chat_logprobs  # noqa: PLC0415 - start-up time

    if answer.parameters.logprobs is None:
        return None
    return {"content": chat_logprobs(answer.text.tokenizer, entries), "refusal": None}


class ChatFrames:
    """The chunks of one chat stream."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        parameters = answer.parameters
        self._has_token_ids = parameters.flag("return_token_ids", default=False)
        self._has_logprobs = parameters.logprobs is not None
        self._is_plain = not (
            self._has_token_ids or self._has_logprobs or parameters.continuous_usage
        )
        self._templates: dict[int, FrameTemplate] = {}
        """Of each choice whose chunks differ in their text alone."""

    def opening(self) -> Iterator[bytes]:
        """One role chunk for each choice, in order: the SDK relies on it."""
        for index in range(self._answer.num_choices):
            yield frame(self._chunk(index, {"role": "assistant", "content": ""}))

    def delta(self, delta: Delta) -> list[bytes]:
        """A content chunk when there is any, and the finish in a chunk of its own."""
        frames: list[bytes] = []
        if self._is_plain:
            if delta.text:
                frames.append(self._template(delta.index).fill(delta.text))
        elif delta.text or delta.logprobs or (self._has_token_ids and delta.token_ids):
            frames.append(frame(self._detailed(delta)))
        if delta.finish_reason is not None:
            frames.append(frame(self._chunk(delta.index, {}, finish_reason=delta.finish_reason)))
        return frames

    def closing(self) -> Iterator[bytes]:
        """The usage chunk, last of all, when asked for."""
        if self._answer.parameters.include_usage:
            yield frame({**self._envelope(), "choices": [], "usage": self._answer.usage()})

    def _template(self, index: int) -> FrameTemplate:
        template = self._templates.get(index)
        if template is None:
            template = FrameTemplate(self._chunk(index, {"content": HOLE}))
            self._templates[index] = template
        return template

    def _detailed(self, delta: Delta) -> dict[str, Any]:
        logprobs = _logprobs(self._answer, delta.logprobs)
        chunk = self._chunk(delta.index, {"content": delta.text}, logprobs=logprobs)
        if self._has_token_ids:
            chunk["choices"][0]["token_ids"] = delta.token_ids
        return chunk

    def _chunk(
        self,
        index: int,
        delta: dict[str, Any],
        *,
        logprobs: dict[str, Any] | None = None,
        finish_reason: str | None = None,
    ) -> dict[str, Any]:
        parameters = self._answer.parameters
        choice = {
            "index": index,
            "delta": delta,
            "logprobs": logprobs,
            "finish_reason": finish_reason,
        }
        chunk = {**self._envelope(), "choices": [choice]}
        if parameters.include_usage:
            chunk["usage"] = self._answer.usage() if parameters.continuous_usage else None
        return chunk

    def _envelope(self) -> dict[str, Any]:
        answer = self._answer
        return {
            "id": answer.id,
            "object": "chat.completion.chunk",
            "created": answer.created,
            "model": answer.model,
            "system_fingerprint": None,
        }
