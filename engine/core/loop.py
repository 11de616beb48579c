"""The engine's logic: messages in, steps, outputs out. Sockets and threads are elsewhere.

A step is schedule → execute → update; between steps the loop takes whatever messages have come, so
requests join and leave a running batch at every step.
"""

import logging
from collections.abc import Callable, Iterable, Sequence

from engine.clock import now_ns
from engine.config import EngineConfig
from engine.core.accounts import Accounts
from engine.core.batch import (
    AdapterStore,
    DeviceFatalError,
    ModelFacts,
    ModelRunner,
    ScheduledRequest,
    StepResult,
)
from engine.core.canary import canary_tokens
from engine.core.endings import ABORTED, CLIENT_CUT_OFF
from engine.core.flight_events import ending_event
from engine.core.flight_recorder import FlightRecorder
from engine.core.intake import Intake
from engine.core.mail import CutOff, Outcome, Received, Shell, StepStamps, received_half, under
from engine.core.plan import links_without_output
from engine.core.power import Power
from engine.core.request import (
    Ending,
    EngineRequest,
    Produced,
    StepTimes,
    produced_end,
)
from engine.core.scheduler import Plan, make_scheduler
from engine.core.utilities import Utilities
from engine.wire.header import Header, TraceContext, new_context
from engine.wire.hops import HopLink, StepRecord
from engine.wire.messages import AbortRequests, AddRequest, EngineOutputs, UtilityCall

logger = logging.getLogger(__name__)


class EngineCore:
    """Requests, steps and utility calls of one engine, around a loaded model.

    Args:
        config: The engine's configuration.
        runner: The model.
        facts: What `runner.load` found.
        shell: Takes messages and records.
        clock: Nanoseconds; tests bring their own.
        flight: Is told of every step and of what is of note; None: nothing is recorded.
    """

    def __init__(
        self,
        config: EngineConfig,
        runner: ModelRunner,
        facts: ModelFacts,
        shell: Shell,
        clock: Callable[[], int] = now_ns,
        flight: FlightRecorder | None = None,
    ) -> None:
        self.config = config
        self.facts = facts
        self.shell = shell
        self.clock = clock
        self.flight = flight or FlightRecorder()
        runner.on_stage = self.flight.stage
        self.step_number = 0
        self.accounts = Accounts()
        self.scheduler = make_scheduler(config, facts)
        self.adapters: AdapterStore | None = runner.adapter_store(shell.wake)
        self.intake = Intake(
            config,
            facts,
            self.scheduler,
            self.adapters,
            tokenizer=runner.tokenizer,
            on_ready=shell.wake,
        )
        self.power = Power(
            runner,
            facts.weights_bytes,
            canary=lambda: canary_tokens(runner, self.scheduler, facts.vocab_size),
            forget=self._forget_cached,
            clock=clock,
        )
        self.utilities = Utilities(self)
        self._runner = runner
        self._client_epochs: dict[str, int] = {}

    @property
    def has_work(self) -> bool:
        """Whether a step would compute something."""
        return self.scheduler.has_runnable

    @property
    def accepting(self) -> bool:
        """Whether new requests are taken; false: they are rejected as asleep."""
        return self.intake.accepting

    @accepting.setter
    def accepting(self, accepting: bool) -> None:
        self.intake.accepting = accepting

    @property
    def phase(self) -> str:
        """What the loop is at, in the words of `Heartbeat.phase`."""
        if self.power.level:
            return "asleep"
        if self.utilities.falling_asleep:
            return "sleep"
        return "step" if self.scheduler.requests else "idle"

    def resident_bytes(self) -> int:
        """Memory that the engine holds now."""
        return self._runner.resident_bytes()

    def shut_down(self) -> None:
        """Refuse what is pending and end the background threads: the engine ends."""
        self.utilities.shut_down()
        self.intake.close()

    def _forget_cached(self) -> None:
        """The engine falls asleep: what is only there to be fast goes too."""
        self.scheduler.reset_prefix_cache()
        self.intake.grammars.clear()

    # ------------------------------------------------------------ one step

    def step(self) -> None:
        """Compute one step of all running requests and send what came out."""
        started_ns = self.clock()
        plan = self.scheduler.schedule(started_ns)
        if not plan.batch:  # all wait for something that is being prepared
            self.publish(plan.ended, new_context())
            return
        self.step_number += 1
        for share in plan.batch:
            if share.samples and share.grammar is not None:
                share.grammar.begin_mask()  # while the model runs
        self._note_plan(plan, started_ns)
        scheduled_ns = self.clock()
        result = self._compute(plan.batch)
        executed_ns = self.clock()
        times = StepTimes(self.step_number, started_ns, executed_ns, len(plan.batch))
        produced = self.scheduler.update(plan, result, times)
        updated_ns = self.clock()

        context = new_context()
        self.publish([*plan.ended, *produced], context)
        stamps = StepStamps(scheduled_ns, updated_ns, self.clock())
        step = self._step_record(plan, result, context, times, stamps)
        self.flight.end_step(stamps.end_ns)
        self.accounts.add_step(plan, result, step)
        self.accounts.add_costs(plan, self.facts)
        if self.shell.recording:
            self.shell.record(step)

    def _note_plan(self, plan: Plan, started_ns: int) -> None:
        """Tell the flight recorder of a step before it can go wrong."""
        if plan.preempted:
            text = f"{plan.preempted} requests, for step {self.step_number}"
            self.flight.event("preempted", text, started_ns)
        waiting, used = self.scheduler.num_waiting, self.scheduler.pool.num_used
        self.flight.begin_step(self.step_number, started_ns, plan, waiting, used)

    def _compute(self, batch: Sequence[ScheduledRequest]) -> StepResult:
        """Execute the batch, inside a span of the profile if one is being taken."""
        profile = self.utilities.profiles.running
        if profile is None:
            return self._execute(batch)
        with profile.step(self.step_number):
            return self._execute(batch)

    def _execute(self, batch: Sequence[ScheduledRequest]) -> StepResult:
        """Run the batch; when it fails, run each request alone, so that only the bad ones fail."""
        try:
            return self._runner.execute(batch)
        except DeviceFatalError:
            raise
        except Exception:
            logger.exception("step %d failed: trying its requests one by one", self.step_number)
            self.flight.event("step.failed", f"step {self.step_number}, tried one by one")
        result = StepResult()
        for share in batch:
            self._execute_alone(share, result)
        return result

    def _execute_alone(self, share: ScheduledRequest, result: StepResult) -> None:
        try:
            alone = self._runner.execute([share])
        except DeviceFatalError:
            raise
        except Exception as error:  # noqa: BLE001 - logged by the failed batch, told to the client
            kind = type(error).__name__
            result.faults[share.request_id] = f"the model could not compute this request ({kind})"
            return
        result.token_ids.update(alone.token_ids)
        result.logprobs.update(alone.logprobs)
        result.prompt_logprobs.update(alone.prompt_logprobs)
        result.faults.update(alone.faults)

    def _step_record(
        self,
        plan: Plan,
        result: StepResult,
        context: TraceContext,
        times: StepTimes,
        stamps: StepStamps,
    ) -> StepRecord:
        links: tuple[HopLink, ...] = ()
        if plan.prefill_tokens and self.shell.recording:
            links = links_without_output(plan)
        return StepRecord(
            engine_id=self.config.engine_id,
            epoch=self.config.epoch,
            step=times.number,
            trace_id=context.trace_id,
            span_id=context.span_id,
            start_ns=times.started_ns,
            scheduled_ns=stamps.scheduled_ns,
            executed_ns=times.executed_ns,
            end_ns=stamps.end_ns,
            prefill_tokens=plan.prefill_tokens,
            decode_tokens=plan.decode_tokens,
            requests=len(plan.batch),
            used_blocks=self.scheduler.pool.num_used,
            preempted=plan.preempted,
            built_ns=result.built_ns,
            forwarded_ns=result.forwarded_ns,
            updated_ns=stamps.updated_ns,
            rows=result.rows,
            waiting=self.scheduler.num_waiting,
            cached_tokens=plan.cached_tokens,
            links=links,
        )

    def publish(self, produced: Iterable[Produced], parent: TraceContext) -> None:
        """Send outputs, one message per client; its send span is a child of `parent`."""
        now = self.clock()
        by_client: dict[int, list[Produced]] = {}
        for item in produced:
            self.accounts.add_output(item, now)
            if ending := ending_event(item):
                self.flight.event(*ending, now)
            if item.request.owner is None:
                self.utilities.probe_output(item.output)
            else:
                by_client.setdefault(item.request.owner.index, []).append(item)
        for client, items in by_client.items():
            body = EngineOutputs(
                step=self.step_number, outputs=tuple(item.output for item in items)
            )
            links = tuple(item.request.link for item in items)
            self.shell.post(under(parent, client, body, now, links=links))

    # ------------------------------------------------------------ messages

    def take(self, mail: Received | CutOff) -> None:
        """Handle one message between two steps."""
        if isinstance(mail, CutOff):
            self._cut_off(mail.client)
            return
        dequeued_ns = self.clock()
        self._meet(mail.header)
        if isinstance(mail.body, UtilityCall) and self._is_current(mail.header):
            self.utilities.start(mail, mail.body, dequeued_ns)  # records the hop when it replies
            return
        outcome, done_ns = self._handle(mail)
        if self.shell.recording:
            name = self.config.engine_id
            self.shell.record(received_half(mail, name, dequeued_ns, done_ns, outcome))

    def _handle(self, mail: Received) -> tuple[Outcome, int]:
        """Handle a request or an abort; return how that went and when it was done."""
        if not self._is_current(mail.header):
            self.accounts.fenced += 1
            kind = type(mail.body).__name__
            self.flight.event("fenced", f"{kind} of a dead {mail.header.sender}")
            return "fenced", self.clock()
        admitted_ns = self.clock()
        match mail.body:
            case AddRequest() if mail.body.request_id in self.scheduler.requests:
                logger.error("dropped request %s: its id is in use", mail.body.request_id)
                return "unknown", self.clock()
            case AddRequest():
                self._admit(mail, mail.body, admitted_ns)
                return "ok", admitted_ns
            case AbortRequests():
                self._abort(mail.header, mail.body)
            case UtilityCall():
                raise AssertionError("utility calls are taken elsewhere")
        return "ok", self.clock()

    def _admit(self, mail: Received, message: AddRequest, now: int) -> None:
        request, refusal = self.intake.admit(mail, message, now)
        if refusal is None:
            self.scheduler.add(request)
        else:
            self.publish([produced_end(request, refusal, now)], mail.header.context)

    def _abort(self, header: Header, message: AbortRequests) -> None:
        requests = self.scheduler.requests
        named = [
            requests[id_]
            for id_ in dict.fromkeys(message.request_ids)
            if id_ in requests and requests[id_].owner is not None
        ]
        self.end_all(named, ABORTED, header.context)
        if message.client is not None and message.client_epoch_below is not None:
            self._raise_client_epoch(message.client, message.client_epoch_below)

    def end_all(
        self, requests: Iterable[EngineRequest], ending: Ending, parent: TraceContext
    ) -> None:
        """End requests now and send their last outputs."""
        now = self.clock()
        self.publish([self.scheduler.end(request, ending, now) for request in requests], parent)

    # ------------------------------------------------------------ clients

    def _is_current(self, header: Header) -> bool:
        return header.sender_epoch >= self._client_epochs.get(header.sender, 0)

    def _meet(self, header: Header) -> None:
        """A client's newer epoch means that the older one is dead."""
        self._raise_client_epoch(header.sender, header.sender_epoch)

    def _raise_client_epoch(self, client: str, epoch: int) -> None:
        if epoch <= self._client_epochs.get(client, 0):
            return
        self._client_epochs[client] = epoch
        orphans = [request for request in self._requests_of(client) if _epoch(request) < epoch]
        if orphans:
            logger.info("%s died: ending its %d requests", client, len(orphans))
            self.flight.event("client.died", f"{client}: {len(orphans)} requests ended")
        now = self.clock()
        for request in orphans:  # nobody is left to read their last outputs
            self.accounts.add_output(self.scheduler.end(request, ABORTED, now), now)

    def _cut_off(self, client: int) -> None:
        name = self.config.clients[client].name
        requests = self._requests_of(name)
        logger.warning("%s does not read: ending its %d requests", name, len(requests))
        self.flight.event("client.cut_off", f"{name}: {len(requests)} requests ended")
        self.end_all(requests, CLIENT_CUT_OFF, new_context())

    def _requests_of(self, client: str) -> list[EngineRequest]:
        requests = self.scheduler.requests.values()
        return [request for request in requests if request.owner and request.owner.name == client]


def _epoch(request: EngineRequest) -> int:
    assert request.owner is not None, "only clients' requests have an epoch"
    return request.owner.epoch
