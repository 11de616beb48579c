"""Everything at once for a long time, through a real engine: nothing is left behind.

Schemas, adapters that come, go and change, penalties, logprobs of prompts, guesses, preemptions,
deadlines, aborts and sleeps. 100 requests in the main run, 5,000 in `make prove`.
"""

import dataclasses
import gc
import json
import random
import threading
from collections import Counter
from pathlib import Path

import pytest
import torch

from engine.core.memory import resident_bytes, trim
from engine.core.request import EngineRequest
from engine.core.runner import TorchRunner
from engine.wire.calls import ListAdapters, LoadAdapter, Sleep, UnloadAdapter, Wake
from engine.wire.messages import (
    AbortRequests,
    AddRequest,
    EngineOutputs,
    FinishReason,
    Grammar,
    GrammarKind,
    SamplingParams,
    UtilityReply,
)
from tests.engine.core.core_bench import CoreBench
from tests.engine.core.random_schemas import random_document
from tests.engine.core.recount import check_scheduler
from tests.engine.models.harness import engine_config
from tests.lora import make_adapter
from tests.tiny_model import make_tokenizer

LIVE = 14
BLOCK = 8
NUM_BLOCKS = 48
NUM_SCHEMAS = 100
"""More than an engine keeps."""
IDLE_TOKENS = 400
"""After that many steps the sampler has forgotten what it counted for others."""
MAX_GROWTH_BYTES = 8 << 20
CPU = torch.device("cpu")
ENDS_BY_ITSELF = (FinishReason.STOP, FinishReason.LENGTH)


class Soak(CoreBench):
    """Sends random requests and does random things to them; keeps nothing but counts."""

    def __init__(self, model: Path, adapters: list[Path], seed: int, sleep_every: int) -> None:
        runner = TorchRunner(engine_config(model, block_size=BLOCK, max_num_seqs=LIVE))
        facts = runner.load(lambda _phase, _done, _total: None)
        self.came = threading.Event()
        super().__init__(
            loaded=(runner, dataclasses.replace(facts, num_blocks=NUM_BLOCKS)),
            block_size=BLOCK,
            max_num_seqs=LIVE,
            max_num_batched_tokens=64,
            policy="fair",
            speculative_tokens=3,
            max_loras=2,
            max_cpu_loras=3,
        )
        self.torch_runner = runner
        self.paths = adapters
        self.chance = random.Random(seed)
        schemas = random.Random(1)
        self.schemas = [json.dumps(random_document(schemas)) for _ in range(NUM_SCHEMAS)]
        self.tokenizer = make_tokenizer()
        self.sleep_every = sleep_every
        self.num_sent = self.num_calls = 0
        self.endings: Counter[str] = Counter()
        self.reasons: Counter[str] = Counter()
        self.texts: dict[str, list[int]] = {}
        """Of live requests with a schema."""

    def wake(self) -> None:
        super().wake()
        self.came.set()

    # ------------------------------------------------------------ the load

    def run_load(self, count: int) -> None:
        """Send `count` requests and do something else now and then; then wait for quiet."""
        for number in range(count):
            self.send_one()
            while len(self.core.scheduler.requests) >= LIVE:
                self.turn()
            self.disturb(number)
        self.quiet()

    def send_one(self) -> None:
        chance, self.num_sent = self.chance, self.num_sent + 1
        name = f"r{self.num_sent}"
        own = [chance.randrange(3, 400) for _ in range(chance.randint(1, 30))]
        grammar = None
        if chance.random() < 0.4:
            grammar = Grammar(kind=GrammarKind.JSON_SCHEMA, source=chance.choice(self.schemas))
            self.texts[name] = []
        sampling = SamplingParams(
            max_tokens=chance.choice([1, 8, 24, 60]),
            temperature=chance.choice([0.0, 1.0]),
            repetition_penalty=chance.choice([1.0, 1.2]),
            frequency_penalty=chance.choice([0.0, 0.5]),
            logprobs=chance.choice([None, 2]),
            prompt_logprobs=chance.choice([None, None, None, 1]),
        )
        self.send(
            AddRequest(
                request_id=name,
                prompt_token_ids=tuple([7, 8, 9, 10] * chance.randint(0, 20) + own + own[:5]),
                sampling=sampling,
                arrival_ns=0,
                deadline_ns=self.now_ns + 2 * 10**8 if chance.random() < 0.08 else None,
                tenant=f"tenant-{chance.randrange(40)}",
                adapter=f"a{chance.randrange(4)}" if chance.random() < 0.4 else None,
                cache_salt=chance.choice([None, "salt"]),
                grammar=grammar,
            ),
        )

    def disturb(self, number: int) -> None:
        chance = self.chance
        live = list(self.core.scheduler.requests)
        if live and chance.random() < 0.12:
            self.send(AbortRequests(request_ids=(chance.choice(live),), reason="user"))
        if number % 6 == 0:
            path = chance.choice(self.paths)
            self.ask(LoadAdapter(name=f"a{chance.randrange(4)}", path=str(path)))
        if number % 25 == 20:
            self.ask(UnloadAdapter(name=f"a{chance.randrange(4)}"))
        if number % self.sleep_every == self.sleep_every // 2:
            self.sleep()

    def ask(self, call: object) -> None:
        self.num_calls += 1
        self.call(call, call_id=f"c{self.num_calls}", timeout_s=1e6)

    def sleep(self) -> None:
        """Fall asleep in the midst of it and wake up at once."""
        mode = self.chance.choice(["wait", "abort"])
        self.ask(Sleep(level=self.chance.choice([1, 2]), mode=mode, timeout_s=80_000.0))
        while not self.core.power.level:
            self.turn()
        self.send_one()  # is rejected
        self.ask(Wake())

    def turn(self) -> None:
        if not (self.core.has_work or self.came.wait(5)):
            raise AssertionError("nothing can run and nothing comes")
        self.came.clear()
        self.core.step()
        self.core.utilities.advance()
        self.sort_out()

    def sort_out(self) -> None:
        """Look at what came out and throw it away."""
        for body in [outgoing.body for outgoing in self.posted]:
            if isinstance(body, UtilityReply):
                assert body.error is None or body.error.code in ("invalid", "busy"), body.error
            for output in body.outputs if isinstance(body, EngineOutputs) else ():
                self.note(output.request_id, output)
        self.posted.clear()
        self.records.clear()
        self.beats.clear()

    def note(self, name: str, output) -> None:
        if name in self.texts:
            self.texts[name].extend(output.new_token_ids)
        if not output.finish_reason:
            return
        self.endings[name] += 1
        self.reasons[output.finish_reason] += 1
        tokens = self.texts.pop(name, None)
        if tokens is not None and output.finish_reason is FinishReason.STOP:
            json.loads(self.tokenizer.decode(tokens[:-1]))
        if output.error is not None:
            wanted = {"deadline_exceeded", "adapter_not_loaded", "engine_asleep"}
            assert output.error.code in wanted, output.error

    def quiet(self) -> None:
        """Let everything end, and the sampler forget."""
        while self.core.scheduler.requests:
            self.turn()
        self.num_sent += 1
        self.add(
            f"r{self.num_sent}",
            [5],
            max_tokens=IDLE_TOKENS,
            ignore_eos=True,
            temperature=1.0,
            seed=1,
        )
        while self.core.scheduler.requests:
            self.turn()
        self.sort_out()
        self.check_nothing_is_left()

    # ------------------------------------------------------------ what must hold

    def check_nothing_is_left(self) -> None:
        core = self.core
        scheduler, waiting = core.scheduler, core.scheduler._admission.waiting
        assert set(self.endings) == {f"r{number + 1}" for number in range(self.num_sent)}
        assert set(self.endings.values()) == {1}, "every request ends exactly once"
        assert core.accounts.finished.total() == self.num_sent
        assert not self.texts
        check_scheduler(scheduler)
        assert scheduler.pool.num_used == len(scheduler._admission.running) == len(waiting) == 0
        assert not waiting._lanes
        assert not scheduler._drafting._lookups
        assert not scheduler._policy._here
        assert not core.intake.grammars._on_the_way
        assert core.intake.grammars.num_kept <= 64
        assert self.torch_runner._sampler._penalties.num_kept_tokens == 0
        assert not core.adapters._loading
        gc.collect()
        assert not [thing for thing in gc.get_objects() if type(thing) is EngineRequest]

    def adapter_leases(self) -> int:
        self.ask(ListAdapters())
        (reply,) = self.bodies(UtilityReply)
        listed = self.reply(ListAdapters.Result, reply.call_id)
        self.sort_out()
        return sum(adapter.running_requests for adapter in listed.adapters)

    def resident_bytes(self) -> int:
        trim(CPU)
        return resident_bytes(CPU)


def soak(tmp_path: Path, model: Path, count: int) -> Soak:
    adapters = [
        make_adapter(tmp_path / f"a{seed}", rank=4 + 4 * seed, seed=seed, model_dir=model)
        for seed in range(5)
    ]
    sleep_every = max(25, count // 12)  # seldom: a sleep empties all caches
    bench = Soak(model, adapters, count, sleep_every)
    bench.run_load(count // 3)
    third = bench.resident_bytes()
    bench.run_load(count - count // 3)
    growth = bench.resident_bytes() - third

    counts, accounts = bench.core.scheduler.counts, bench.core.accounts
    print(dict(bench.reasons), counts, accounts.preemptions, bench.core.intake.grammars.counts)
    print(f"{third >> 20} MiB after a third, {growth / 2**20:+.1f} MiB at the end")
    assert bench.adapter_leases() == 0
    assert growth < MAX_GROWTH_BYTES
    assert accounts.preemptions >= count // 100
    assert counts.cached_tokens > count
    assert counts.accepted_tokens > 0
    assert set(bench.reasons) == {str(reason) for reason in FinishReason}
    bench.core.shut_down()
    return bench


def test_a_hundred_mixed_requests_leave_nothing_behind(tmp_path, tiny_model_path):
    soak(tmp_path, tiny_model_path, 100)


@pytest.mark.prove
@pytest.mark.timeout(900)
def test_five_thousand_mixed_requests_leave_memory_flat(tmp_path, tiny_model_path):
    soak(tmp_path, tiny_model_path, 5000)
