"""The life of one choice: find an engine, send, take tokens, make text, see it to its end.

A choice whose engine dies before anything of its request was delivered is sent again, once.
"""

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import msgspec

from appliance.gateway.data_plane import DataPlane
from appliance.gateway.dispatch import Dispatcher
from appliance.gateway.engine_errors import ASLEEP_CODE, api_error_of, engine_restarted
from appliance.gateway.journey import ChoiceState, Journey
from appliance.gateway.openai.errors import ApiError
from engine.client.collector import RequestOutputCollector
from engine.client.core_client import EngineClientError, EngineDeadError
from engine.clock import now_ns
from engine.wire.messages import (
    AbortReason,
    AddRequest,
    FinishReason,
    Grammar,
    RequestOutput,
    SamplingParams,
    TokenLogprobs,
)

if TYPE_CHECKING:
    from appliance.gateway.model_texts import ModelText
    from engine.text.answer import Answer, AnswerRules

logger = logging.getLogger(__name__)

MAX_DEATHS = 2


class Delta(msgspec.Struct, frozen=True, gc=False):
    """What a choice has to say now."""

    index: int
    text: str
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    finish_reason: str | None = None
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    """Of the prompt's tokens but the first, with the first token, when asked for."""


class Sink(Protocol):
    """Where the deltas of all choices of a request go."""

    @property
    def has_delivered(self) -> bool:
        """Whether the client has got anything of the answer."""
        ...

    async def emit(self, delta: Delta) -> None:
        """Take a delta; returns when there is room for the next."""
        ...

    def restart(self, index: int) -> None:
        """Forget what was emitted of this choice: it begins again."""
        ...


@dataclass(frozen=True, slots=True)
class ChoicePlan:
    """What to generate for one choice."""

    state: ChoiceState
    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams
    rules: "AnswerRules"
    num_choices: int
    keeps_stop_token_entry: bool = False
    """Whether logprobs have an entry for the stop token that ended the text."""
    drops_output: bool = False
    """Only the prompt is wanted: the one token that an engine must make is not shown."""
    grammar: Grammar | None = None
    grammar_param: str = "response_format"
    """The request field that brought the grammar."""
    cache_salt: str | None = None
    priority: int = 0
    adapter: str | None = None
    """Name of the loaded adapter that answers; None: the model itself."""


class ChoiceRun:
    """Generates one choice."""

    def __init__(
        self, plane: DataPlane, journey: Journey, text: "ModelText", plan: ChoicePlan, sink: Sink
    ) -> None:
        self._plane = plane
        self._journey = journey
        self._text = text
        self._plan = plan
        self._sink = sink
        self._dispatcher = Dispatcher(plane, journey)
        self._state = plan.state
        self._collector: RequestOutputCollector | None = None
        self._is_waiting = True
        self._is_aborted = False
        self._deaths = 0
        self._sends = 0
        self._answer = self._new_answer()
        self._gaps = plane.ledger.gaps(journey)

    # ------------------------------------------------------------ life

    async def run(self) -> None:
        """Generate to the end.

        Raises:
            ApiError: it failed; nothing more of this choice comes.
        """
        while True:
            try:
                if await self._consume(await self._send()):
                    return
            except EngineDeadError as error:
                self._after_death(error)

    async def settle(self) -> None:
        """Take the engine's last word on a choice that has ended or was aborted.

        The caller bounds the time; `close` must follow.
        """
        try:
            while True:
                collector = self._collector
                if collector is None:
                    return
                self._note(await collector.get())
        except EngineDeadError:
            self._release()

    def close(self) -> None:
        """Give everything back, whatever happened."""
        if self._collector is not None:
            self._plane.client.forget(self._collector.request_id)
            self._release()
        self._leave_waiting_room()

    # ------------------------------------------------------------ out: to an engine

    async def _send(self) -> RequestOutputCollector:
        """Send the choice to an engine, waiting for one."""
        state, context = self._state, self._journey.context
        request = AddRequest(
            request_id=self._engine_request_id(),
            prompt_token_ids=self._plan.prompt_token_ids,
            sampling=self._plan.sampling,
            arrival_ns=context.received_ns,
            tenant=context.key.key_id if context.key else None,
            grammar=self._plan.grammar,
            cache_salt=self._plan.cache_salt,
            priority=self._plan.priority,
            adapter=self._plan.adapter,
        )
        collector = await self._dispatcher.send(request)
        self._sends += 1
        self._is_aborted = False
        self._collector = collector
        self._plane.fleet.load[collector.engine_id] += 1
        state.engine_request_id = request.request_id
        state.engine_id, state.engine_epoch = collector.engine_id, collector.epoch
        state.send_span_id = collector.send_span_id
        return collector

    def _engine_request_id(self) -> str:
        base = self._journey.context.request_id
        if self._plan.num_choices > 1:
            base = f"{base}-{self._state.index}"
        return f"{base}-r{self._sends}" if self._sends else base

    # ------------------------------------------------------------ in: from the engine

    async def _consume(self, collector: RequestOutputCollector) -> bool:
        """Take outputs to the end; false when the engine refused it unstarted."""
        while True:
            output = await collector.get()
            self._note(output)
            if output.finish_reason is FinishReason.REJECTED and _is_asleep(output):
                self._plane.fleet.mark_asleep(collector.engine_id, collector.epoch)
                return False
            error = api_error_of(output, self._plan.grammar_param)
            if error is not None:
                raise error
            delta = self._digest(output)
            await self._sink.emit(delta)
            if delta.finish_reason is not None:
                return True

    def _note(self, output: RequestOutput) -> None:
        """Keep what the record needs."""
        self._state.timeline = output.timeline or self._state.timeline
        self._state.cached_tokens = max(self._state.cached_tokens, output.cached_tokens)
        if output.warnings:
            self._journey.context.warn(output.warnings)
        if output.finish_reason is not None:
            self._release()

    def _digest(self, output: RequestOutput) -> Delta:
        """Turn tokens into text, up to a stop."""
        start_ns = now_ns()
        if self._plan.drops_output:
            return self._digest_prompt(output, start_ns)
        said = self._answer.push(output)
        if said.is_cut:
            self.abort(AbortReason.STOP_STRING)
        logprobs = said.logprobs
        if isinstance(said.stop_reason, int) and not self._plan.keeps_stop_token_entry:
            logprobs = logprobs[:-1]
        self._count(len(said.token_ids), said.finish_reason, start_ns)
        return Delta(
            index=self._state.index,
            text=said.text,
            token_ids=said.token_ids,
            logprobs=logprobs,
            finish_reason=said.finish_reason,
            prompt_logprobs=output.prompt_logprobs or (),
        )

    def _digest_prompt(self, output: RequestOutput, start_ns: int) -> Delta:
        """Keep what is said of the prompt."""
        finish_reason = None if output.finish_reason is None else FinishReason.LENGTH.value
        self._count(0, finish_reason, start_ns)
        return Delta(
            index=self._state.index,
            text="",
            finish_reason=finish_reason,
            prompt_logprobs=output.prompt_logprobs or (),
        )

    def _count(self, num_tokens: int, finish_reason: str | None, start_ns: int) -> None:
        journey, state = self._journey, self._state
        state.completion_tokens += num_tokens
        self._gaps.note(num_tokens)
        state.finish_reason = finish_reason
        journey.last_token_ns = start_ns
        journey.detokenize_ns += now_ns() - start_ns
        self._leave_waiting_room()
        if journey.first_token_ns is None and num_tokens:
            journey.first_token_ns = start_ns
            self._plane.records.first_token(
                journey.context.request_id, state.engine_id, state.engine_epoch
            )

    # ------------------------------------------------------------ ends

    def _after_death(self, error: EngineDeadError) -> None:
        """Prepare to be sent again, or raise what the client gets."""
        self._plane.fleet.mark_dead(error.engine_id, error.epoch)
        self._release()
        self._deaths += 1
        if self._sink.has_delivered:
            raise engine_restarted()
        if self._deaths >= MAX_DEATHS:
            message = "The engine died twice while it worked on this request."
            raise ApiError("request_crashed_engine", message)
        logger.warning(
            "request %s goes back to the queue: %s", self._journey.context.request_id, error
        )
        self._journey.requeues += 1
        self._plane.ledger.requeued()
        self._state.completion_tokens = self._state.cached_tokens = 0
        self._answer = self._new_answer()
        self._gaps.restart()
        self._sink.restart(self._state.index)

    def abort(self, reason: AbortReason) -> None:
        """Tell the engine, once; a dead engine need not be told."""
        if self._collector is None or self._is_aborted:
            return
        self._is_aborted = True
        assert self._journey.chat is not None
        try:
            self._plane.client.abort(
                self._collector.engine_id,
                (self._collector.request_id,),
                reason,
                self._journey.chat,
            )
        except EngineClientError as error:
            logger.warning("abort of %s was not sent: %s", self._collector.request_id, error)

    def _release(self) -> None:
        if self._collector is not None:
            self._plane.fleet.load[self._collector.engine_id] -= 1
            self._journey.note_collected(self._collector)
            self._collector = None

    def _leave_waiting_room(self) -> None:
        if self._is_waiting:
            self._is_waiting = False
            self._plane.admission.room.leave()

    def _new_answer(self) -> "Answer":
        from engine.text.answer import Answer  # noqa: PLC0415 - start-up time

        return Answer(self._text.tokenizer, self._plan.prompt_token_ids, self._plan.rules)


def _is_asleep(output: RequestOutput) -> bool:
    return output.error is None or output.error.code == ASLEEP_CODE


def sampling_within(sampling: SamplingParams, max_tokens: int) -> SamplingParams:
    """Return the sampling of a request whose room is known."""
    min_tokens = min(sampling.min_tokens, max_tokens)
    return msgspec.structs.replace(sampling, max_tokens=max_tokens, min_tokens=min_tokens)
