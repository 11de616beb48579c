"""A request and its answer: admit, tokenize, generate, answer.

The steps are the phases of the request's trace, in order.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

import msgspec
from starlette.types import Scope, Send

from appliance.gateway.content import with_content
from appliance.gateway.data_plane import DataPlane
from appliance.gateway.dispatch import Dispatcher, refuse_if_asleep, unavailable
from appliance.gateway.fleet import Asleep, Unavailable
from appliance.gateway.generation import ChoiceRun, Sink
from appliance.gateway.http_protocol import CUT_KEY
from appliance.gateway.journey import ChoiceState, Journey
from appliance.gateway.limits import in_proportion
from appliance.gateway.openai.choice_plans import (
    check_token_ids,
    choice_plans,
    rooms_of,
)
from appliance.gateway.openai.collected import Collected
from appliance.gateway.openai.dialect import Answer, Dialect, Encode, unix_now
from appliance.gateway.openai.errors import ApiError, model_not_found
from appliance.gateway.openai.parameters import Parameters
from appliance.gateway.openai.sse import SseStream
from appliance.gateway.request_context import send_json
from appliance.gateway.supervision import beside, together
from engine.clock import now_ns
from engine.text.bad_words import bad_word_tokens
from engine.wire.header import child_context
from engine.wire.messages import AbortReason

logger = logging.getLogger(__name__)

BYTES_PER_TOKEN = 4
"""Of a prompt, for the estimate that is charged before it is tokenized."""
BYTES_PER_LOGPROB = 64
UNKNOWN_ROOM = 1024
LARGE_TEXT_BYTES = 2 << 10
"""Of a body whose text is rendered and tokenized in a thread: it takes more than a third of a
millisecond from here on. Below, handing it over and back would take longer."""
ANONYMOUS = "anonymous"


@dataclass(slots=True)
class _Charge:
    """What admission took from a key, to be settled by actual use."""

    key_id: str | None
    tokens: int = 0


class Exchange:
    """One request and its answer.

    Args:
        plane: What all requests share.
        dialect: Of the route.
        journey: Of the request, with its parameters.
        scope: The ASGI scope.
        send: The ASGI send.
    """

    def __init__(
        self, plane: DataPlane, dialect: Dialect, journey: Journey, scope: Scope, send: Send
    ) -> None:
        assert journey.parameters is not None
        self._plane = plane
        self._dialect = dialect
        self._journey = journey
        self._parameters: Parameters = journey.parameters
        self._send = send
        self._cut: Callable[[], None] = scope.get(CUT_KEY, lambda: None)
        self._stream: SseStream | None = None
        self._runs: list[ChoiceRun] = []
        self._places = 0
        self._adapter: str | None = None
        self._charge = _Charge(self._payer())

    async def run(self, encode: Encode, body_bytes: int) -> None:
        """Admit, tokenize, generate, answer. Raises ApiError."""
        self._find_model()
        self._admit(body_bytes)
        answer = await self._tokenize(encode, body_bytes)
        self._accept()
        if self._parameters.stream:
            await self._answer_stream(answer)
        else:
            await self._answer_at_once(answer)
        self._journey.is_complete = True

    async def fail(self, error: ApiError) -> None:
        """Answer with an error, or end a stream that has begun with an error frame.

        At once: the engine's last word, which the record waits for, is none of the client's.
        """
        self._journey.context.error = error
        if self._stream is not None and self._stream.has_started:
            await self._stream.fail(error)
        else:
            await send_json(self._send, error.status, error.body(), error.headers())

    async def settle(self, reason: AbortReason) -> None:
        """Hear the engines out, for a bounded time, and give everything back."""
        for run in self._runs:
            run.abort(reason)
        try:
            async with asyncio.timeout(self._plane.timing.settle_s):
                for run in self._runs:
                    await run.settle()
        except TimeoutError:
            logger.warning("no last word on request %s", self._journey.context.request_id)
        finally:
            for run in self._runs:
                run.close()
            self._plane.admission.room.cancel(self._places - len(self._runs))
            self._settle_charge()

    # ------------------------------------------------------------ admission

    def _payer(self) -> str | None:
        context = self._journey.context
        if context.is_local:
            return None
        return context.key.key_id if context.key else ANONYMOUS

    def _find_model(self) -> None:
        """Name the model, or refuse; what is certain to fail is refused before it costs."""
        model = self._parameters.model
        if not self._plane.fleet.routes(model):
            raise model_not_found()
        self._journey.model = model
        self._journey.base_model = self._plane.fleet.base_of(model)
        self._adapter = model if model != self._journey.base_model else None
        decision = self._plane.fleet.choose(model)
        if isinstance(decision, Unavailable):
            raise unavailable(decision)
        if isinstance(decision, Asleep):
            refuse_if_asleep(self._plane, decision.route)

    def _admit(self, body_bytes: int) -> None:
        parameters = self._parameters
        self._take_places(parameters.n)
        if self._charge.key_id is not None:
            wanted = parameters.max_tokens
            generated = (UNKNOWN_ROOM if wanted is None else wanted) * parameters.n
            tokens = body_bytes // BYTES_PER_TOKEN + generated
            keys, context = self._plane.admission.keys, self._journey.context
            context.rate = keys.status(self._charge.key_id)  # a refusal shows it too
            context.rate = keys.charge(self._charge.key_id, tokens)
            self._charge.tokens = tokens
        self._journey.admitted_ns = now_ns()

    def _take_places(self, count: int) -> None:
        self._plane.admission.room.enter(count)
        self._places += count

    def _settle_charge(self) -> None:
        if self._charge.key_id is not None and self._charge.tokens:
            used = self._journey.completion_tokens
            if self._journey.context.was_accepted:
                used += self._journey.prompt_tokens
            self._plane.admission.keys.settle(self._charge.key_id, self._charge.tokens, used)

    # ------------------------------------------------------------ tokenize

    async def _tokenize(self, encode: Encode, body_bytes: int) -> Answer:
        """Render and tokenize, and check what depends on it."""
        plane, journey, parameters = self._plane, self._journey, self._parameters
        route = plane.fleet.routes(parameters.model)[0]
        text = await plane.texts.get(route.model_path, plane.hold_s)
        check_token_ids(text, parameters)
        limit = plane.fleet.max_model_len(parameters.model)
        prompts = await in_proportion(
            body_bytes, lambda: encode(text, limit), threshold_bytes=LARGE_TEXT_BYTES
        )
        bad_words: tuple[tuple[int, ...], ...] = ()
        if parameters.bad_words:
            bad_words = await asyncio.to_thread(
                bad_word_tokens, text.tokenizer, parameters.bad_words
            )
        self._take_places((len(prompts) - 1) * parameters.n)
        journey.prompt_tokens = sum(map(len, prompts))
        journey.choices = [
            ChoiceState(index, len(prompts[index // parameters.n]))
            for index in range(len(prompts) * parameters.n)
        ]
        answer = Answer(
            id=f"{self._dialect.id_prefix}{journey.context.hex_id}",
            created=unix_now(),
            model=parameters.model,
            parameters=parameters,
            journey=journey,
            text=text,
            prompts=prompts,
            bad_words=bad_words,
        )
        if limit is not None:
            journey.max_tokens = max(rooms_of(answer, self._dialect, limit))
        return answer

    def _accept(self) -> None:
        """From here on the request is accounted for as accepted."""
        plane, journey = self._plane, self._journey
        journey.max_tokens = journey.max_tokens or self._parameters.max_tokens
        journey.tokenized_ns = now_ns()
        journey.chat = child_context(journey.context.trace)
        plane.ledger.accept(journey)
        plane.records.accepted(journey)

    # ------------------------------------------------------------ generate and answer

    async def _answer_at_once(self, answer: Answer) -> None:
        collected = Collected(answer.num_choices)
        await self._generate(answer, collected)
        body = await in_proportion(
            self._answer_bytes(),
            lambda: msgspec.json.encode(self._dialect.complete(answer, collected.choices)),
        )
        start_ns = self._journey.first_frame_ns = now_ns()
        self._journey.frames = 1
        try:
            await send_json(self._send, 200, body)
        finally:
            self._journey.note_sent(start_ns)

    def _answer_bytes(self) -> int:
        """About how long a plain answer gets."""
        journey, parameters = self._journey, self._parameters
        entries = journey.completion_tokens * _num_candidates(parameters.logprobs)
        entries += journey.prompt_tokens * _num_candidates(parameters.prompt_logprobs)
        return journey.completion_tokens * BYTES_PER_TOKEN + entries * BYTES_PER_LOGPROB

    async def _answer_stream(self, answer: Answer) -> None:
        stream = SseStream(
            self._send,
            self._cut,
            self._dialect.frames(answer),
            self._journey,
            self._plane.timing,
        )
        self._stream = stream
        await beside(stream.keep_alive(), self._generate(answer, stream))
        await stream.close()

    async def _generate(self, answer: Answer, sink: Sink) -> None:
        """Run every choice to its end."""
        sink = with_content(sink, self._journey, self._plane.fleet.state)
        limit = await Dispatcher(self._plane, self._journey).know_context()
        rooms = rooms_of(answer, self._dialect, limit)
        self._journey.max_tokens = max(rooms)
        for plan in choice_plans(answer, self._dialect, rooms, self._adapter):
            self._runs.append(ChoiceRun(self._plane, self._journey, answer.text, plan, sink))
        if len(self._runs) == 1:
            await self._runs[0].run()
        else:
            await together([run.run() for run in self._runs])


def _num_candidates(asked: int | None) -> int:
    return 0 if asked is None else 1 + asked
