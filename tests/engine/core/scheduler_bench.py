"""A scheduler around a runner without a model, stepped by hand; its clock ticks once a step."""

from engine.config import EngineConfig
from engine.core.batch import ModelFacts, ScheduledRequest, StepResult
from engine.core.endings import ABORTED
from engine.core.plan import Plan
from engine.core.request import EngineRequest, Owner, Produced, StepTimes, engine_request
from engine.core.scheduler import make_scheduler
from engine.wire.header import new_context
from engine.wire.messages import AddRequest, SamplingParams
from tests.engine.core.kv_runner import EOS, VOCAB, KvRunner

OWNER = Owner(1, "gateway-0", 1)
MESSAGE_FIELDS = ("deadline_ns", "priority", "tenant", "cache_salt")


def a_request(name: str, prompt: list[int], **options: object) -> EngineRequest:
    message_fields = {key: options.pop(key) for key in MESSAGE_FIELDS if key in options}
    needs = {key: options.pop(key) for key in ("adapter", "grammar") if key in options}
    sampling = SamplingParams(**{"max_tokens": 5, "temperature": 0.0, **options})
    message = AddRequest(
        request_id=name,
        prompt_token_ids=tuple(prompt),
        sampling=sampling,
        arrival_ns=0,
        **message_fields,
    )
    return engine_request(message, OWNER, new_context(), (EOS,), received_ns=1, **needs)


def some_facts(**options: object) -> ModelFacts:
    fields = {
        "architecture": "hash",
        "vocab_size": VOCAB,
        "max_model_len": 200,
        "dtype": "float32",
        "device": "cpu",
        "kernel_backend": "hash",
        "weights_bytes": 0,
        "kv_cache_bytes": 0,
        "num_blocks": 64,
        "eos_token_ids": (EOS,),
    }
    return ModelFacts(**{**fields, **options})


def a_config(**options: object) -> EngineConfig:
    fields = {
        "engine_id": "e0",
        "epoch": 1,
        "model": "hash",
        "model_name": "m",
        "clients": (),
        "block_size": 4,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 16,
        "long_prefill_threshold": 1 << 20,
    }
    return EngineConfig(**{**fields, **options})


class Bench:
    """See the module. `max_len` and the sizes of the pools are the model's, all else configured."""

    def __init__(
        self,
        *,
        num_blocks: int = 64,
        seqs: int = 8,
        budget: int = 16,
        max_len: int = 200,
        window: int | None = None,
        num_window_blocks: int = 0,
        runner: KvRunner | None = None,
        **options: object,
    ) -> None:
        config = a_config(max_num_seqs=seqs, max_num_batched_tokens=budget, **options)
        facts = some_facts(
            num_blocks=num_blocks,
            max_model_len=max_len,
            sliding_window=window,
            num_window_blocks=num_window_blocks,
        )
        self.runner = runner or KvRunner(num_blocks=num_blocks, block_size=config.block_size)
        self.runner.load(lambda phase, done, total: None)
        self.scheduler = make_scheduler(config, facts)
        self.now_ns = 10
        self.step_ns = 10
        self.took_ns = 5
        """What the last step took."""
        self.steps = 0
        self.plan = Plan()
        self.outputs: dict[str, list[int]] = {}
        self.endings: dict[str, Produced] = {}

    def add(self, *requests: EngineRequest) -> None:
        for request in requests:
            assert self.scheduler.refusal(request) is None
            self.scheduler.add(request)

    def step(self) -> list[Produced]:
        self.now_ns += self.step_ns
        self.steps += 1
        self.plan = self.scheduler.schedule(self.now_ns)
        result = self.execute(self.plan.batch)
        times = StepTimes(self.steps, self.now_ns, self.now_ns + self.took_ns, len(self.plan.batch))
        produced = [*self.plan.ended, *self.scheduler.update(self.plan, result, times)]
        for item in produced:
            self.note(item)
        return produced

    def execute(self, batch: list[ScheduledRequest]) -> StepResult:
        return self.runner.execute(batch) if batch else StepResult()

    def note(self, item: Produced) -> None:
        output = item.output
        self.outputs.setdefault(output.request_id, []).extend(output.new_token_ids)
        if output.finish_reason:
            assert output.request_id not in self.endings, "a request ends once"
            self.endings[output.request_id] = item

    def abort(self, request: EngineRequest) -> None:
        self.note(self.scheduler.end(request, ABORTED, self.now_ns))

    def run(self) -> None:
        while self.scheduler.requests:
            self.step()

    def shares(self) -> dict[str, int]:
        return {share.request_id: len(share.token_ids) for share in self.plan.batch}
