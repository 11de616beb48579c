"""Renders a chat by the model's own template and encodes it."""

from collections.abc import Sequence
from typing import Any, cast

from engine.text.control_mask import ControlMask, MaskedChat
from engine.text.template_sandbox import TemplateError, compile_template, render
from engine.text.tokenizer import Tokenizer

__all__ = ["ChatTemplate", "TemplateError"]

ROLES = frozenset({"developer", "system", "user", "assistant", "tool", "function"})
"""Roles go unmasked into templates that write `<|role|>`, so they are a closed set."""
_HERE = "\n<end of the message to continue>"


class ChatTemplate:
    """The chat template of one checkpoint. `encode` blocks: call it off the event loop."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._mask = ControlMask(tokenizer.control_tokens)
        self._template = None
        self._problem = (
            "this model has no chat template: use /v1/completions, or a model made for chat"
        )
        if tokenizer.chat_template is not None:
            try:
                self._template = compile_template(tokenizer.chat_template)
            except TemplateError as error:
                self._problem = str(error)

    def encode(
        self,
        messages: list[dict[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
    ) -> list[int]:
        """Return the prompt of a chat; what users wrote never becomes a control token.

        Parts of type `text` are joined by a line break. With `continue_final_message` the prompt
        ends inside the last message, which the model then goes on with.

        Raises:
            TemplateError: no template, a template that fails or refuses, a chat it cannot take.
        """
        if self._template is None:
            raise TemplateError(self._problem)
        if continue_final_message and add_generation_prompt:
            raise TemplateError("continue_final_message needs add_generation_prompt to be false")
        chat = self._prepared(messages)
        end = self._mark_end(chat) if continue_final_message else None
        text = render(
            self._template,
            {
                "messages": chat.messages,
                "tools": None,
                "documents": None,
                "add_generation_prompt": add_generation_prompt,
                "bos_token": self._tokenizer.bos_token or "",
                "eos_token": self._tokenizer.eos_token or "",
            },
        )
        if end is not None:
            text = _cut_at(text, end)
        return self._encoded(text, chat)

    def _prepared(self, messages: list[dict[str, Any]]) -> MaskedChat:
        if not messages:
            raise TemplateError("messages is empty")
        try:
            return MaskedChat(self._mask, [_plain(message) for message in messages])
        except RecursionError as error:
            raise TemplateError("messages are nested too deeply") from error

    def _mark_end(self, chat: MaskedChat) -> str:
        """Put a character behind the last message, and a space that shows whether it is trimmed."""
        mark = chat.stand_in(_HERE)
        chat.messages[-1]["content"] += f"{mark} "
        return mark

    def _encoded(self, text: str, chat: MaskedChat) -> list[int]:
        spans = {stand_in: own for stand_in, own in chat.originals.items() if stand_in in text}
        try:
            return self._tokenizer.encode_rendered(text, spans)
        except ValueError as error:
            raise TemplateError(
                "a message holds half a surrogate pair, which is no text"
            ) from error


def _plain(message: dict[str, Any]) -> dict[str, Any]:
    role = message.get("role")
    if role not in ROLES:
        raise TemplateError(f"unknown role {role!r}: one of {', '.join(sorted(ROLES))}")
    return {**message, "content": _content(message.get("content"))}


def _content(content: Any) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list | tuple):
        return "\n".join(_part_text(part) for part in cast("Sequence[Any]", content))
    raise TemplateError(f"content is a {type(content).__name__}: must be text or a list of parts")


def _part_text(part: Any) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, dict):
        fields = cast("dict[str, Any]", part)
        if fields.get("type") == "text" and isinstance(fields.get("text"), str):
            return fields["text"]
        raise TemplateError(f"this model takes parts of type 'text', not {fields.get('type')!r}")
    raise TemplateError(f"a part of content is a {type(part).__name__}: must be an object")


def _cut_at(text: str, mark: str) -> str:
    at = text.rfind(mark)
    if at < 0:
        raise TemplateError("the model's chat template leaves out the message to continue")
    is_trimmed = text[at + 1 : at + 2] != " "
    return text[:at].rstrip() if is_trimmed else text[:at]
