"""Tokenizers and chat templates of the served models, loaded off the loop, once each."""

import asyncio
import gc
import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from appliance.gateway.openai.errors import ApiError, context_length_exceeded
from engine.clock import now_ns

if TYPE_CHECKING:
    from engine.text.chat_template import ChatTemplate
    from engine.text.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

LOAD_AGAIN_NS = 10_000_000_000
"""A text that could not be loaded is tried again after this long, when somebody asks for it."""


@dataclass(frozen=True, slots=True)
class ModelText:
    """How one model's text becomes token ids and back."""

    tokenizer: "Tokenizer"
    template: "ChatTemplate"

    def encode_chat(
        self,
        messages: list[dict[str, Any]],
        *,
        add_generation_prompt: bool,
        continue_final_message: bool,
    ) -> list[int]:
        """Render and tokenize messages.

        Raises:
            ApiError: the template refuses them.
        """
        from engine.text.chat_template import TemplateError  # noqa: PLC0415 - start-up time

        try:
            return self.template.encode(
                messages,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
            )
        except TemplateError as error:
            raise ApiError("invalid_prompt", str(error), param="messages") from error

    def check_length(self, num_chars: int, limit: int | None, param: str) -> None:
        """Raise ApiError when so long a text has more than `limit` tokens, whatever it says.

        To be asked before a text is encoded: that takes a second for each megabyte.
        """
        fewest = math.ceil(num_chars / self.tokenizer.longest_token_chars)
        if limit is not None and fewest > limit:
            raise context_length_exceeded(limit, fewest, param, at_least=True)

    def check_ids(self, token_ids: Sequence[int], param: str) -> None:
        """Raise ApiError when an id is not in the vocabulary."""
        if any(not 0 <= token_id < self.tokenizer.vocab_size for token_id in token_ids):
            message = f"'{param}' has a token id outside of the vocabulary."
            raise ApiError("invalid_value", message, param=param)


def load_text(model_path: Path) -> ModelText:
    """Load a model's tokenizer and template; blocks for about a second."""
    from engine.text.chat_template import ChatTemplate  # noqa: PLC0415 - start-up time
    from engine.text.tokenizer import Tokenizer  # noqa: PLC0415

    tokenizer = Tokenizer.load(model_path)
    return ModelText(tokenizer, ChatTemplate(tokenizer))


class TextRegistry:
    """The texts of all models by path; `run` loads what `ensure` was asked for."""

    def __init__(self) -> None:
        self._texts: dict[str, ModelText] = {}
        self._failed_ns: dict[str, int] = {}
        self._wanted: asyncio.Queue[str] = asyncio.Queue()
        self._requested: set[str] = set()
        self._changed = asyncio.Condition()

    def ensure(self, model_path: str) -> None:
        """Begin to load a model's text, unless that was begun already or failed lately."""
        failed_ns = self._failed_ns.get(model_path)
        if failed_ns is not None and now_ns() - failed_ns >= LOAD_AGAIN_NS:
            del self._failed_ns[model_path]
            self._requested.discard(model_path)
        if model_path not in self._requested:
            self._requested.add(model_path)
            self._wanted.put_nowait(model_path)

    def is_loaded(self, model_path: str) -> bool:
        """Whether a model's text is here."""
        return model_path in self._texts

    async def run(self) -> None:
        """Load wanted texts one after the other, until cancelled."""
        while True:
            model_path = await self._wanted.get()
            try:
                self._texts[model_path] = await asyncio.to_thread(load_text, Path(model_path))
                gc.freeze()  # modules and vocabulary stay: collections need not look at them
            except Exception:  # the gateway stays up and says so to whoever asks for this model
                logger.exception("the tokenizer of %s could not be loaded", model_path)
                self._failed_ns[model_path] = now_ns()
            async with self._changed:
                self._changed.notify_all()

    async def get(self, model_path: str, timeout_s: float) -> ModelText:
        """Return a model's text, waiting while it loads.

        Raises:
            ApiError: it is still loading, or could not be loaded.
        """
        if model_path in self._texts:
            return self._texts[model_path]
        self.ensure(model_path)
        try:
            async with asyncio.timeout(timeout_s), self._changed:
                await self._changed.wait_for(
                    lambda: model_path in self._texts or model_path in self._failed_ns
                )
        except TimeoutError:
            message = "The model's tokenizer is still loading."
            raise ApiError("server_overloaded", message, retry_after_s=2) from None
        text = self._texts.get(model_path)
        if text is None:
            raise ApiError("internal_error", "The model's tokenizer could not be loaded.")
        return text
