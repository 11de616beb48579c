"""A prompt on its way through the engines, and the result that it becomes."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import blake2b

import msgspec

from engine.clock import now_ns
from engine.offline.parameters import SamplingParams
from engine.offline.prompts import Encoded
from engine.offline.results import Completion, Generation
from engine.text.answer import Answer, AnswerDelta
from engine.text.tokenizer import Tokenizer
from engine.wire.messages import AddRequest, RequestOutput, TokenLogprobs

_NO_PROMPT = Encoded(None, (), 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Extras:
    """Request fields that are no sampling."""

    adapter: str | None = None
    """Name of a loaded LoRA adapter."""
    priority: int = 0
    cache_salt: str | None = None


@dataclass(slots=True, kw_only=True)
class Job:
    """A prompt, encoded or faulty, and how to answer it."""

    index: int
    """Of the prompt, from 0."""
    request_id: str
    prompt: Encoded | None
    params: SamplingParams
    extras: Extras = field(default_factory=Extras)
    bad_words: tuple[tuple[int, ...], ...] = ()
    """The token sequences of `params.bad_words`."""
    fault: str | None = None
    """Why the prompt cannot be used."""

    def requests(self) -> Iterator[AddRequest]:
        """Yield the engine's request of each answer."""
        assert self.prompt is not None, "a faulty prompt is never sent"
        for choice in range(self.params.n):
            yield AddRequest(
                request_id=f"{self.request_id}-{choice}",
                prompt_token_ids=self.prompt.token_ids,
                sampling=self.params.wire(choice, self.prompt.room, self.bad_words),
                arrival_ns=now_ns(),
                priority=self.extras.priority,
                adapter=self.extras.adapter,
                cache_salt=self.extras.cache_salt,
                grammar=self.params.grammar(),
            )

    def result(
        self,
        outputs: tuple[Completion, ...],
        prompt_logprobs: tuple[TokenLogprobs, ...] | None = None,
        cached_tokens: int = 0,
        warnings: tuple[str, ...] = (),
    ) -> Generation:
        """Return the prompt with its answers."""
        prompt = self.prompt or _NO_PROMPT
        return Generation(
            request_id=self.request_id,
            prompt=prompt.text,
            prompt_token_ids=prompt.token_ids,
            outputs=outputs,
            prompt_logprobs=prompt_logprobs,
            cached_tokens=cached_tokens,
            warnings=warnings,
        )

    def failed(self, fault: str) -> Generation:
        """Return the result of a prompt that was never sent."""
        return self.result((_failure(0, fault),))


class GrowingAnswer:
    """One answer as it grows."""

    def __init__(self, job: Job, choice: int, tokenizer: Tokenizer) -> None:
        assert job.prompt is not None, "a faulty prompt is never sent"
        self.job = job
        self.choice = choice
        self._answer = Answer(tokenizer, job.prompt.token_ids, job.params.rules())
        self._texts: list[str] = []
        self._token_ids: list[int] = []
        self._logprobs: list[TokenLogprobs] = []
        self.prompt_logprobs: tuple[TokenLogprobs, ...] | None = None
        self.cached_tokens = 0
        self.warnings: tuple[str, ...] = ()

    def push(self, output: RequestOutput) -> AnswerDelta:
        """Take an output."""
        delta = self._answer.push(output)
        self._texts.append(delta.text)
        self._token_ids += delta.token_ids
        self._logprobs += delta.logprobs
        self.prompt_logprobs = output.prompt_logprobs or self.prompt_logprobs
        self.warnings += output.warnings
        self.cached_tokens = max(self.cached_tokens, output.cached_tokens)
        return delta

    def completion(self, delta: AnswerDelta, error: str | None) -> Completion:
        """Return the whole, given its last part."""
        assert delta.finish_reason is not None, "more comes"
        has_logprobs = self.job.params.logprobs is not None
        return Completion(
            index=self.choice,
            text="".join(self._texts),
            token_ids=tuple(self._token_ids),
            finish_reason="error" if error is not None else delta.finish_reason,
            stop_reason=delta.stop_reason,
            logprobs=tuple(self._logprobs) if has_logprobs else None,
            error=error,
        )


def fault_of(output: RequestOutput) -> str | None:
    """Return why an engine ended a request that it should have finished."""
    if output.error is not None:
        return f"{output.error.code}: {output.error.message}"
    return None


def seeded(params: SamplingParams, seed: int | None, number: int) -> SamplingParams:
    """Give a request without a seed one that depends on the run's seed and its number alone."""
    if seed is None or params.seed is not None:
        return params
    digest = blake2b(f"{seed} {number}".encode(), digest_size=8).digest()
    return msgspec.structs.replace(params, seed=int.from_bytes(digest, signed=True))


def _failure(index: int, fault: str) -> Completion:
    return Completion(index=index, text="", token_ids=(), finish_reason="error", error=fault)
