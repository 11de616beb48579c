"""Runs many prompts through the engines of a synchronous client, as many at a time as pays."""

from collections import Counter, deque
from collections.abc import Iterator, Sequence

from engine.client.balance import Balancer, prefix_hashes
from engine.client.core_client import EngineClientError, SyncEngineCoreClient
from engine.offline.jobs import GrowingAnswer, Job, fault_of
from engine.offline.prompts import Encoded
from engine.offline.results import Completion, Generation
from engine.text.answer import AnswerDelta
from engine.text.tokenizer import Tokenizer
from engine.wire.header import TraceContext, new_context
from engine.wire.messages import AbortReason, RequestOutput

POLL_S = 1.0


class _Assembly:
    """The answers to one prompt that have ended."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.completions: list[Completion] = []
        self.first: GrowingAnswer | None = None

    def generation(self) -> Generation:
        assert self.first is not None, "the first answer has ended"
        self.completions.sort(key=lambda completion: completion.index)
        return self.job.result(
            tuple(self.completions),
            self.first.prompt_logprobs,
            self.first.cached_tokens,
            self.first.warnings,
        )


class BatchRun:
    """One call of `LLM.generate`.

    Args:
        client: Nobody else takes its outputs meanwhile.
        engine_ids: Its engines.
        balancer: Chooses among them; it lives as long as the engines.
        tokenizer: Of the model.
        window: Requests in flight at most, but a prompt's answers all at once.
    """

    def __init__(
        self,
        client: SyncEngineCoreClient,
        engine_ids: Sequence[str],
        balancer: Balancer[str],
        tokenizer: Tokenizer,
        window: int,
    ) -> None:
        self._client = client
        self._engine_ids = engine_ids
        self._balancer = balancer
        self._tokenizer = tokenizer
        self._window = window
        self._context: TraceContext = new_context()
        self._load: Counter[str] = Counter()
        self._engines: dict[str, str] = {}
        """Engine of each request in flight."""
        self._live: dict[str, GrowingAnswer] = {}
        self._assemblies: dict[str, _Assembly] = {}
        self._done: deque[tuple[int, Generation]] = deque()

    def run(self, jobs: Iterator[Job]) -> Iterator[tuple[int, Generation]]:
        """Yield (index, result) as prompts are done; jobs are taken as there is room.

        Whatever ends it, nothing of it stays in the engines.

        Raises:
            EngineDeadError, EngineUnreachableError: the run cannot go on.
        """
        try:
            while True:
                self._fill(jobs)
                while self._done:
                    yield self._done.popleft()
                if not self._live:
                    return
                for output in self._client.get_outputs(POLL_S):
                    self._take(output)
        finally:
            self._abandon()

    # ------------------------------------------------------------ out

    def _fill(self, jobs: Iterator[Job]) -> None:
        while len(self._live) < self._window:
            job = next(jobs, None)
            if job is None:
                return
            if job.fault is not None:
                self._done.append((job.index, job.failed(job.fault)))
            else:
                self._send(job)

    def _send(self, job: Job) -> None:
        assert job.prompt is not None, "checked by the caller"
        prefix = self._prefix_of(job, job.prompt)
        self._assemblies[job.request_id] = _Assembly(job)
        for choice, request in enumerate(job.requests()):
            engine_id = self._balancer.choose(self._engine_ids, self._load, prefix)
            self._live[request.request_id] = GrowingAnswer(job, choice, self._tokenizer)
            self._engines[request.request_id] = engine_id
            self._load[engine_id] += 1
            self._client.add_request(
                engine_id, request, self._context, external_id=request.request_id
            )
            self._balancer.note(engine_id, prefix)

    def _prefix_of(self, job: Job, prompt: Encoded) -> tuple[bytes, ...]:
        """Return what engines may know of the prompt; nothing when there is no choice."""
        if len(self._engine_ids) == 1:
            return ()
        extras = job.extras
        return prefix_hashes(prompt.token_ids, adapter=extras.adapter, cache_salt=extras.cache_salt)

    # ------------------------------------------------------------ in

    def _take(self, output: RequestOutput) -> None:
        answer = self._live.get(output.request_id)
        if answer is None:  # of a run that was given up
            return
        delta = answer.push(output)
        if delta.finish_reason is not None:
            self._finish(output, answer, delta)

    def _finish(self, output: RequestOutput, answer: GrowingAnswer, delta: AnswerDelta) -> None:
        engine_id = self._engines.pop(output.request_id)
        del self._live[output.request_id]
        self._load[engine_id] -= 1
        if delta.is_cut:
            self._client.forget(output.request_id)
            self._client.abort(
                engine_id, (output.request_id,), AbortReason.STOP_STRING, self._context
            )
        assembly = self._assemblies[answer.job.request_id]
        assembly.completions.append(answer.completion(delta, fault_of(output)))
        if answer.choice == 0:
            assembly.first = answer
        if len(assembly.completions) == answer.job.params.n:
            del self._assemblies[answer.job.request_id]
            self._done.append((answer.job.index, assembly.generation()))

    def _abandon(self) -> None:
        """End what still runs."""
        by_engine: dict[str, list[str]] = {}
        for request_id, engine_id in self._engines.items():
            self._client.forget(request_id)
            by_engine.setdefault(engine_id, []).append(request_id)
        for engine_id, ids in by_engine.items():
            try:
                self._client.abort(
                    engine_id, tuple(ids), AbortReason.CLIENT_DISCONNECTED, self._context
                )
            except EngineClientError:
                continue  # nothing runs in a dead engine
