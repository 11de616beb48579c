"""POST /v1/completions: text or token ids in, their continuation out."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from appliance.gateway.generation import Delta
from appliance.gateway.openai.checks import check_length, integer
from appliance.gateway.openai.collected import CollectedChoice
from appliance.gateway.openai.dialect import Answer, Encode, written_prompt_logprobs
from appliance.gateway.openai.errors import ApiError, missing, wrong_type
from appliance.gateway.openai.fields import DEFAULT_COMPLETION_TOKENS, MAX_PROMPTS
from appliance.gateway.openai.frames import HOLE, FrameTemplate, frame
from appliance.gateway.openai.parameters import Parameters, parse_completion_parameters
from engine.wire.messages import TokenLogprobs

if TYPE_CHECKING:
    from appliance.gateway.model_texts import ModelText

SHAPES = "a string, an array of strings, an array of token ids, or an array of such arrays"
Prompt = str | tuple[int, ...]


class CompletionDialect:
    """The completions route; choice k of prompt p has index p * n + k."""

    id_prefix = "cmpl-"
    prompt_param = "prompt"

    def parse(self, body: Mapping[str, Any], *, strict: bool) -> tuple[Parameters, Encode]:
        """Check a completion request."""
        parameters = parse_completion_parameters(body, strict=strict)
        if "prompt" not in parameters.fields:
            raise missing("prompt")
        adds_special = parameters.flag("add_special_tokens", default=True)
        return parameters, _encoder(parse_prompts(parameters.fields["prompt"]), adds_special)

    def default_max_tokens(self, room: int) -> int:
        """Sixteen, as ever, or what fits."""
        return min(DEFAULT_COMPLETION_TOKENS, room)

    def frames(self, answer: Answer) -> "CompletionFrames":
        """Write a stream of completions."""
        return CompletionFrames(answer)

    def complete(self, answer: Answer, choices: Sequence[CollectedChoice]) -> dict[str, Any]:
        """Write a `text_completion`."""
        return {
            **_envelope(answer),
            "choices": [_complete_choice(answer, choice) for choice in choices],
            "usage": answer.usage(),
            "system_fingerprint": None,
        }


def parse_prompts(value: Any) -> list[Prompt]:
    """Return the prompts of any of the four shapes.

    Raises:
        ApiError: another shape, an empty prompt, or too many.
    """
    if type(value) is str:
        return [_text_prompt(value)]
    if type(value) is not list:
        raise wrong_type("prompt", SHAPES)
    if not value:
        raise _empty()
    if all(type(item) is int for item in value):
        return [_ids_prompt(value)]
    check_length(value, "prompt", MAX_PROMPTS)
    kinds = {type(item) for item in value}
    if kinds == {str}:
        return [_text_prompt(item) for item in value]
    if kinds == {list}:
        return [_ids_prompt(item) for item in value]
    raise wrong_type("prompt", SHAPES)


def _text_prompt(value: str) -> str:
    if not value:
        raise ApiError("empty_string", "'prompt' must not be empty.", param="prompt")
    return value


_TOKEN_ID = integer(0, 2**31 - 1)


def _ids_prompt(values: list[Any]) -> tuple[int, ...]:
    if not values:
        raise _empty()
    return tuple(_TOKEN_ID(value, "prompt") for value in values)


def _empty() -> ApiError:
    return ApiError("empty_array", "'prompt' must not be empty.", param="prompt")


def _encoder(prompts: list[Prompt], adds_special: bool) -> Encode:
    def encode(text: "ModelText", limit: int | None) -> list[tuple[int, ...]]:
        for prompt in prompts:
            text.check_length(len(prompt) if isinstance(prompt, str) else 0, limit, "prompt")
        return [_encode_one(text, prompt, adds_special) for prompt in prompts]

    return encode


def _encode_one(text: "ModelText", prompt: Prompt, adds_special: bool) -> tuple[int, ...]:
    if isinstance(prompt, str):
        return tuple(text.tokenizer.encode(prompt, add_special_tokens=adds_special))
    text.check_ids(prompt, "prompt")
    return prompt


def _envelope(answer: Answer) -> dict[str, Any]:
    return {
        "id": answer.id,
        "object": "text_completion",
        "created": answer.created,
        "model": answer.model,
    }


class _ChoiceWriter:
    """The echo of one choice's prompt, and its `logprobs` as they come."""

    def __init__(self, answer: Answer, index: int) -> None:
        from appliance.gateway.logprobs import TextOffsets  # noqa: PLC0415 - start-up time

        parameters = answer.parameters
        self._tokenizer = answer.text.tokenizer
        self._num_candidates = parameters.logprobs
        self.prompt = answer.prompts[index // parameters.n]
        self.echoes = parameters.flag("echo", default=False)
        self.echo = self._tokenizer.decode(self.prompt) if self.echoes else ""
        self._offsets = TextOffsets(
            self._tokenizer,
            self.prompt,
            len(self.echo),
            skip_special_tokens=parameters.flag("skip_special_tokens", default=True),
        )

    def echoed(self, entries: Sequence[TokenLogprobs]) -> dict[str, Any] | None:
        """Return the `logprobs` of the echoed prompt, if both are asked for."""
        from appliance.gateway.logprobs import echo_logprobs  # noqa: PLC0415 - start-up time

        if self._num_candidates is None or not self.echoes:
            return None
        return echo_logprobs(
            self._tokenizer,
            self.prompt,
            entries,
            num_candidates=self._num_candidates,
            echo=self.echo,
        )

    def logprobs(self, entries: Sequence[TokenLogprobs]) -> dict[str, Any] | None:
        """Return the `logprobs` of the next tokens, if asked for."""
        from appliance.gateway.logprobs import completion_logprobs  # noqa: PLC0415 - start-up time

        if self._num_candidates is None:
            return None
        return completion_logprobs(self._tokenizer, entries, self._offsets)


def _complete_choice(answer: Answer, choice: CollectedChoice) -> dict[str, Any]:
    writer = _ChoiceWriter(answer, choice.index)
    logprobs = writer.logprobs(choice.logprobs)
    echoed = writer.echoed(choice.prompt_logprobs)
    if logprobs and echoed:
        logprobs = {name: echoed[name] + values for name, values in logprobs.items()}
    body: dict[str, Any] = {
        "index": choice.index,
        "text": writer.echo + choice.text,
        "logprobs": logprobs,
        "finish_reason": choice.finish_reason,
    }
    if answer.parameters.flag("return_token_ids", default=False):
        body["token_ids"] = choice.token_ids
        body["prompt_token_ids"] = writer.prompt
    return body | written_prompt_logprobs(answer, choice)


class CompletionFrames:
    """The chunks of one completions stream."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        parameters = answer.parameters
        self._has_token_ids = parameters.flag("return_token_ids", default=False)
        self._is_plain = not (
            self._has_token_ids or parameters.logprobs is not None or parameters.continuous_usage
        )
        self._writers: dict[int, _ChoiceWriter] = {}
        """Of each choice that has begun."""
        self._templates: dict[int, FrameTemplate] = {}
        """Of each choice whose chunks differ in their text alone."""

    def opening(self) -> Iterator[bytes]:
        """Nothing: a choice begins with its own first delta."""
        return iter(())

    def delta(self, delta: Delta) -> list[bytes]:
        """A chunk of text when there is any; the last one carries the finish reason."""
        template = self._templates.get(delta.index)
        if template is not None and delta.text and delta.finish_reason is None:
            return [template.fill(delta.text)]
        return [frame(chunk) for chunk in self._chunks(delta)]

    def closing(self) -> Iterator[bytes]:
        """The usage chunk, last of all, when asked for."""
        if self._answer.parameters.include_usage:
            yield frame({**_envelope(self._answer), "choices": [], "usage": self._answer.usage()})

    def _chunks(self, delta: Delta) -> Iterator[dict[str, Any]]:
        writer = self._writers.get(delta.index)
        if writer is None:
            writer = self._writers[delta.index] = _ChoiceWriter(self._answer, delta.index)
            if writer.echoes:
                logprobs = writer.echoed(delta.prompt_logprobs)
                yield self._chunk(delta.index, writer.echo, logprobs)
            if self._is_plain:
                self._templates[delta.index] = FrameTemplate(self._chunk(delta.index, HOLE))
        has_ids = self._has_token_ids and delta.token_ids
        if not (delta.text or delta.logprobs or has_ids or delta.finish_reason):
            return
        logprobs = writer.logprobs(delta.logprobs)
        chunk = self._chunk(delta.index, delta.text, logprobs, delta.finish_reason)
        if self._has_token_ids:
            chunk["choices"][0]["token_ids"] = delta.token_ids
        yield chunk

    def _chunk(
        self,
        index: int,
        text: str | msgspec.Raw,
        logprobs: dict[str, Any] | None = None,
        finish_reason: str | None = None,
    ) -> dict[str, Any]:
        parameters = self._answer.parameters
        choice = {
            "index": index,
            "text": text,
            "logprobs": logprobs,
            "finish_reason": finish_reason,
        }
        chunk = {**_envelope(self._answer), "choices": [choice]}
        if parameters.include_usage:
            chunk["usage"] = self._answer.usage() if parameters.continuous_usage else None
        return chunk
