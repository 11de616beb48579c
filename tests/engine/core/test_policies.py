"""The policies at work: simulations with a clock, and the registry."""

import random
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from engine.core.batch import ConfigError, StepResult
from engine.core.policies.fair import MAX_TENANTS, Fair
from engine.core.policies.registry import make_policy
from engine.core.request import EngineRequest
from tests.engine.core.scheduler_bench import Bench, a_config, a_request, some_facts
from tests.engine.core.seeing_runner import SeeingRunner


def lowest(bench: Bench, name: str, length: int = 4, **options: object) -> EngineRequest:
    """Add a request that decodes for a long time."""
    fields = {"max_tokens": 100, "ignore_eos": True, **options}
    request = a_request(name, [len(name), *range(length - 1)], **fields)
    bench.add(request)
    return request


# ------------------------------------------------------------ priority


@pytest.mark.parametrize("shortage", ["places", "blocks", "budget"])
def test_a_high_priority_enters_within_one_step_of_a_full_batch(shortage: str):
    bench = Bench(
        policy="priority",
        seqs=4 if shortage == "places" else 16,
        num_blocks=16 if shortage == "blocks" else 64,
        budget=16,
    )
    for number in range(4):
        lowest(bench, f"low{number}", length=16, priority=5)
    for _ in range(4 if shortage != "budget" else 1):
        bench.step()
    urgent = a_request("high", list(range(9)), priority=-1, max_tokens=2)
    bench.add(urgent)

    bench.step()

    assert bench.shares()["high"] == 9
    assert urgent.first_token_ns is not None
    preempted = [item.request_id for item in bench.scheduler.requests.values() if item.preemptions]
    if shortage == "places":
        assert preempted == ["low3"], "the youngest of the least important"
    bench.run()
    assert bench.endings["high"].request.preemptions == 0


def test_all_that_are_more_important_enter_at_once():
    bench = Bench(policy="priority", seqs=4, budget=32)
    for number in range(4):
        lowest(bench, f"low{number}", priority=number)
    bench.step()
    bench.add(*(a_request(f"high{number}", [1, 2], priority=-1) for number in range(3)))

    bench.step()

    assert set(bench.shares()) == {"low0", "high0", "high1", "high2"}


def test_equal_priorities_wait_for_each_other():
    bench = Bench(policy="priority", seqs=2)
    for number in range(2):
        lowest(bench, f"old{number}", max_tokens=3)
    bench.step()
    bench.add(a_request("new", [1, 2]))

    bench.step()

    assert set(bench.shares()) == {"old0", "old1"}
    assert bench.plan.preempted == 0


def test_reserved_places_are_for_negative_priorities_only():
    bench = Bench(policy="priority", seqs=4, reserved_seqs=2, budget=64)
    for number in range(4):
        lowest(bench, f"plain{number}")
    bench.step()
    assert bench.scheduler.num_running == 2

    bench.add(*(a_request(f"high{number}", [1, 2, 3], priority=-1) for number in range(2)))
    bench.step()

    assert set(bench.shares()) == {"plain0", "plain1", "high0", "high1"}
    assert bench.plan.preempted == 0


def test_nobody_gives_way_to_one_who_would_not_fit_then_either():
    bench = Bench(policy="priority", num_blocks=16, budget=64)
    lowest(bench, "equal", length=40, priority=-1, max_tokens=4)
    lowest(bench, "low", length=8, priority=5, max_tokens=4)
    bench.step()
    bench.add(a_request("high", [9] * 40, priority=-1, max_tokens=2))

    bench.step()

    assert set(bench.shares()) == {"equal", "low"}
    bench.run()
    assert bench.endings["low"].request.preemptions == 0


def test_requests_that_share_a_prefix_give_way_together():
    bench = Bench(policy="priority", num_blocks=24, budget=128, max_len=90)
    beginning = list(range(60))
    bench.add(a_request("before", beginning, max_tokens=1))
    bench.run()
    for number in range(4):  # 15 blocks together and one each
        fields = {"max_tokens": 50, "ignore_eos": True, "priority": 5}
        bench.add(a_request(f"low{number}", [*beginning, 90 + number], **fields))
    bench.step()
    assert bench.scheduler.pool.num_used == 19
    bench.add(a_request("high", [99] * 80, priority=-1, max_tokens=2))

    bench.step()

    assert bench.shares()["high"] == 80
    bench.run()


def test_nobody_gives_way_where_the_windows_blocks_would_not_suffice_either():
    window = {"window": 8, "num_window_blocks": 9, "runner": SeeingRunner(8), "block_size": 2}
    bench = Bench(policy="priority", num_blocks=200, budget=64, **window)
    lowest(bench, "equal", length=8, priority=-1, max_tokens=4)
    lowest(bench, "low", length=3, priority=5, max_tokens=4)
    bench.step()
    assert bench.scheduler.num_running == 2
    bench.add(a_request("high", [3] * 12, priority=-1, max_tokens=2))

    bench.step()

    assert set(bench.shares()) == {"equal", "low"}


# ------------------------------------------------------------ fair


@dataclass
class Tenant:
    """Sends requests at a constant rate."""

    name: str
    per_second: float
    prompt_tokens: int = 40
    output_tokens: int = 60
    next_s: float = 0.0
    sent: int = 0
    waits_ms: list[float] = field(default_factory=list)


class Simulation:
    """An engine whose steps last 10 ms and 0.1 ms more for each token."""

    def __init__(self, *tenants: Tenant, policy: str = "fair", **options: object) -> None:
        fields = {"seqs": 32, "budget": 128, "num_blocks": 1024, "long_prefill_threshold": 0}
        self.bench = Bench(policy=policy, max_len=4000, **{**fields, **options})
        self.tenants = tenants
        self.tokens = dict.fromkeys([tenant.name for tenant in tenants], 0)
        self.arrivals: dict[str, tuple[Tenant, float]] = {}
        self.random = random.Random(1)
        self.now_s = 0.0
        self.bench.execute = self.execute

    def execute(self, batch):
        """A model whose tokens are all the same."""
        num_tokens = sum(len(share.token_ids) for share in batch)
        self.bench.took_ns = 10_000_000 + 100_000 * num_tokens
        return StepResult(token_ids={item.request_id: (7,) for item in batch if item.samples})

    def run(self, seconds: float) -> None:
        while self.now_s < seconds:
            self.arrive()
            if not self.bench.scheduler.requests:
                self.now_s = min(tenant.next_s for tenant in self.tenants)
                continue
            self.bench.now_ns = int(self.now_s * 1e9)
            produced = self.bench.step()
            self.now_s += self.bench.took_ns / 1e9
            for item in produced:
                tenant, arrived_s = self.arrivals[item.output.request_id]
                self.tokens[tenant.name] += len(item.output.new_token_ids)
                if item.request.num_output_tokens == 1:
                    tenant.waits_ms.append((self.now_s - arrived_s) * 1e3)

    def arrive(self) -> None:
        for tenant in self.tenants:
            while tenant.next_s <= self.now_s:
                name = f"{tenant.name}-{tenant.sent}"
                self.arrivals[name] = (tenant, tenant.next_s)
                tenant.sent += 1
                tenant.next_s += self.random.expovariate(tenant.per_second)
                if (
                    sum(1 for key in self.bench.scheduler.requests if key.startswith(tenant.name))
                    > 150
                ):
                    continue  # the gateway's limit for one key
                prompt = [tenant.sent] * tenant.prompt_tokens
                request = a_request(
                    name, prompt, tenant=tenant.name, max_tokens=tenant.output_tokens
                )
                self.bench.add(request)


def p99(values: list[float]) -> float:
    return sorted(values)[int(0.99 * (len(values) - 1))]


def quiet_waits_ms(
    policy: str, loud_per_second: float, seconds: float = 60, **options: object
) -> list[float]:
    quiet, loud = Tenant("quiet", 1.0), Tenant("loud", loud_per_second)
    tenants = [quiet, loud] if loud_per_second else [quiet]
    Simulation(*tenants, policy=policy, **options).run(seconds)
    return quiet.waits_ms


@pytest.mark.parametrize("num_blocks", [1024, 300], ids=["places-are-short", "blocks-are-short"])
def test_a_quiet_tenant_waits_at_most_twice_as_long_beside_a_loud_one(num_blocks: int):
    alone = quiet_waits_ms("fair", 0.0, num_blocks=num_blocks)
    beside = quiet_waits_ms("fair", 50.0, num_blocks=num_blocks)
    first_come = quiet_waits_ms("fcfs", 50.0, 20, num_blocks=num_blocks)

    print(f"p99: alone {p99(alone):.0f}, fair {p99(beside):.0f}, fcfs {p99(first_come):.0f} ms")
    assert len(beside) > 45
    assert p99(beside) <= 2.0 * p99(alone)
    assert p99(first_come) > 10.0 * p99(alone), "the load is a load"


def test_two_loud_tenants_get_the_same_service_and_weights_divide_it():
    for weight in (1.0, 3.0):
        tenants = [Tenant("a", 50.0), Tenant("b", 50.0, output_tokens=20)]
        simulation = Simulation(*tenants, tenant_weights={"a": weight})
        simulation.run(seconds=20)
        counters = simulation.bench.scheduler._policy.counters()

        largest = 40 + 2 * 60
        gap = abs(counters["a"] - counters["b"])
        assert gap <= 2 * 32 * largest, "bounded by what can run at once"
        assert counters["a"] > 5 * gap


def test_a_tenant_that_was_away_has_saved_nothing_up():
    fair = Fair(4, 100)
    for name in ("busy-1", "busy-2"):
        request = a_request(name, [1] * 10, tenant="busy")
        fair.note_waiting(request)
        if name == "busy-1":
            fair.note_running(request)
            fair.note_output(request, 500)

    fair.note_waiting(a_request("late", [1], tenant="late"))

    assert fair.counters()["late"] == fair.counters()["busy"] == 10 + 2 * 500


def test_the_tenants_that_fair_remembers_are_bounded():
    fair = Fair(4, 100)
    for number in range(2 * MAX_TENANTS):
        request = a_request("r", [1], tenant=f"t{number}")
        fair.note_waiting(request)
        fair.note_end(request)

    assert len(fair.counters()) == MAX_TENANTS


def test_tenants_whose_requests_need_all_blocks_do_not_take_them_from_each_other_for_ever():
    bench = Bench(policy="fair", num_blocks=8, budget=9, prefix_caching=False)
    for tenant in ("a", "b", "c"):
        bench.add(a_request(tenant, [1] * 20, tenant=tenant, max_tokens=12, ignore_eos=True))

    for _ in range(100):
        if bench.scheduler.requests:
            bench.step()

    assert set(bench.endings) == {"a", "b", "c"}


# ------------------------------------------------------------ the registry


def test_an_unknown_policy_is_a_configuration_error_that_lists_the_known_ones():
    with pytest.raises(ConfigError, match=r"'lifo'.*known: fair, fcfs, priority"):
        make_policy(a_config(policy="lifo"), some_facts())


def test_reserving_all_places_is_a_configuration_error():
    with pytest.raises(ConfigError, match="reserved_seqs"):
        make_policy(a_config(policy="priority", max_num_seqs=4, reserved_seqs=4), some_facts())


def test_a_weight_of_nothing_is_a_configuration_error():
    with pytest.raises(ConfigError, match="'idle' must be above 0"):
        make_policy(a_config(policy="fair", tenant_weights={"idle": 0.0}), some_facts())


SHORTEST = """
from engine.core.policies.policy import Policy


class Shortest(Policy):
    def rank(self, request):
        return (request.num_prompt_tokens, request.arrival)

    def lane(self, request):
        return request.num_prompt_tokens


def make_shortest(config, facts):
    return Shortest(config.max_num_seqs, facts.num_blocks * config.block_size)
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package as pip leaves it: a module, metadata and entry points on `sys.path`."""
    (tmp_path / "shortest_first.py").write_text(SHORTEST)
    metadata = tmp_path / "shortest_first-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: shortest-first\nVersion: 1.0\n"
    )
    points = ("shortest = shortest_first:make_shortest", "broken = shortest_first:nothing")
    (metadata / "entry_points.txt").write_text("\n".join(["[quarterdeck.policies]", *points]))
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.usefixtures("installed")
def test_an_installed_package_can_bring_a_policy():
    bench = Bench(policy="shortest", seqs=1)
    bench.add(a_request("long", [1, 2, 3], max_tokens=1), a_request("short", [1], max_tokens=1))

    assert [bench.step()[0].output.request_id for _ in range(2)] == ["short", "long"]
    with pytest.raises(ConfigError, match="known: broken, fair, fcfs, priority, shortest"):
        make_policy(a_config(policy="other"), some_facts())
    with pytest.raises(ConfigError, match="'broken' cannot be made"):
        make_policy(a_config(policy="broken"), some_facts())
