"""Prompts of every shape to token ids, and whether they fit."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard, cast

from engine.text.bad_words import bad_word_tokens
from engine.text.chat_template import ChatTemplate, TemplateError
from engine.text.tokenizer import Tokenizer

Prompt = str | Sequence[int] | Mapping[str, Any]
"""Text, token ids, `{"prompt": text}`, `{"prompt_token_ids": ids}` or `{"messages": [...]}`."""
Message = Mapping[str, Any]
"""Of a chat: `role` and `content`."""

SHAPES = "text, token ids, or an object with prompt, prompt_token_ids or messages"


class PromptError(ValueError):
    """A prompt that cannot be used; no other one suffers."""


@dataclass(frozen=True, slots=True)
class Encoded:
    """A prompt as the engine takes it."""

    text: str | None
    token_ids: tuple[int, ...]
    room: int
    """Tokens that the context has left for the answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatOptions:
    """How messages are rendered."""

    add_generation_prompt: bool = True
    continue_final_message: bool = False


class PromptEncoder:
    """Renders and tokenizes the prompts of one model.

    Args:
        tokenizer: Of the model.
        max_model_len: Context that the engines have room for.
    """

    def __init__(self, tokenizer: Tokenizer, max_model_len: int) -> None:
        self.tokenizer = tokenizer
        self._template = ChatTemplate(tokenizer)
        self._max_model_len = max_model_len

    def encode(self, prompt: Prompt, chat: ChatOptions | None = None) -> Encoded:
        """Return the token ids of a prompt.

        Raises:
            PromptError: of no known shape, empty, too long, or refused by the chat template.
        """
        text, ids = self._encode(prompt, chat or ChatOptions())
        room = self._max_model_len - len(ids)
        if not ids:
            raise PromptError("the prompt is empty")
        if room < 1:
            raise PromptError(
                f"the prompt has {len(ids)} tokens, and the context only {self._max_model_len}"
            )
        return Encoded(text, ids, room)

    def bad_words(self, words: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        """Return the token sequences of words that may not come."""
        return bad_word_tokens(self.tokenizer, words) if words else ()

    def _encode(self, prompt: Prompt, chat: ChatOptions) -> tuple[str | None, tuple[int, ...]]:
        if isinstance(prompt, str):
            return prompt, self._text_ids(prompt)
        if isinstance(prompt, Mapping):
            return self._encode_object(prompt, chat)
        if is_token_ids(prompt):
            return None, self._checked_ids(prompt)
        raise PromptError(f"a prompt is {SHAPES}")

    def _encode_object(
        self, prompt: Mapping[str, Any], chat: ChatOptions
    ) -> tuple[str | None, tuple[int, ...]]:
        match prompt:
            case {"prompt": str(text)}:
                return text, self._text_ids(text)
            case {"prompt_token_ids": ids} if is_token_ids(ids):
                return None, self._checked_ids(ids)
            case {"messages": [*messages]}:
                return None, self._chat_ids(cast("list[Message]", messages), chat)
            case _:
                raise PromptError(f"a prompt is {SHAPES}")

    def _text_ids(self, text: str) -> tuple[int, ...]:
        try:
            return tuple(self.tokenizer.encode(text))
        except ValueError as error:
            raise PromptError(str(error)) from error

    def _chat_ids(self, messages: Sequence[Message], chat: ChatOptions) -> tuple[int, ...]:
        try:
            ids = self._template.encode(
                [dict(message) for message in messages],
                add_generation_prompt=chat.add_generation_prompt,
                continue_final_message=chat.continue_final_message,
            )
        except (TemplateError, TypeError, ValueError) as error:
            raise PromptError(str(error)) from error
        return tuple(ids)

    def _checked_ids(self, ids: Sequence[int]) -> tuple[int, ...]:
        size = self.tokenizer.vocab_size
        if any(not 0 <= token_id < size for token_id in ids):
            raise PromptError(f"a token id is outside of the vocabulary, 0 to {size - 1}")
        return tuple(ids)


def is_token_ids(value: object) -> TypeGuard[Sequence[int]]:
    """Tell token ids from other sequences."""
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Sequence):
        return False
    return all(type(item) is int for item in cast("Sequence[object]", value))


def as_prompts(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """Return one or many prompts as a list; a flat list of integers is one prompt."""
    if isinstance(prompts, str | Mapping):
        return [cast("Prompt", prompts)]
    many = cast("Sequence[Prompt]", prompts)
    return [cast("Prompt", prompts)] if many and is_token_ids(many) else list(many)
