"""The choice of an engine, and what it does to whole loads."""

import heapq
import random
from collections import Counter

from engine.client.balance import (
    BLOCK_TOKENS,
    BLOCKS_PER_REQUEST,
    MARGIN,
    MAX_HASHED_BLOCKS,
    Balancer,
    prefix_hashes,
)

ENGINES = ("e0", "e1", "e2", "e3")
TURN = tuple(range(5 * BLOCK_TOKENS))


def test_a_hash_depends_on_all_before_it_on_the_adapter_and_on_the_salt():
    hashes = prefix_hashes(TURN)

    assert len(hashes) == 5
    assert prefix_hashes((*TURN, 1, 2)) == hashes, "a block that is not whole has no hash"
    assert prefix_hashes((9, *TURN[1:]))[4] != hashes[4]
    assert prefix_hashes((*TURN[:-1], 9))[:4] == hashes[:4]
    for other in (prefix_hashes(TURN, adapter="a"), prefix_hashes(TURN, cache_salt="a")):
        assert not set(other) & set(hashes)
    assert prefix_hashes(TURN, adapter="a") != prefix_hashes(TURN, cache_salt="a")


def test_a_long_prompt_is_hashed_in_part():
    assert len(prefix_hashes(range(100_000))) == MAX_HASHED_BLOCKS


def test_without_a_known_prefix_the_least_loaded_gets_it_and_ties_take_turns():
    balancer: Balancer[str] = Balancer()
    order: list[str] = []
    for _ in range(8):
        order.append(balancer.choose(ENGINES, {}))
        balancer.note(order[-1])

    assert order == [*ENGINES, *ENGINES]
    assert balancer.choose(ENGINES, {"e0": 2, "e1": 1, "e2": 3, "e3": 1}) in {"e1", "e3"}


def test_a_long_known_prefix_outweighs_load_up_to_the_margin():
    balancer: Balancer[str] = Balancer()
    talk = tuple(range(MARGIN * BLOCKS_PER_REQUEST * BLOCK_TOKENS))
    half = len(talk) // 2
    balancer.note("e1", prefix_hashes(talk[:half]))
    balancer.note("e2", prefix_hashes(talk))
    prefix = prefix_hashes((*talk, *range(40)))

    assert balancer.choose(ENGINES, {}, prefix) == "e2"
    assert balancer.choose(ENGINES, {"e1": 2, "e2": MARGIN}, prefix) == "e2"
    assert balancer.choose(ENGINES, {"e2": MARGIN + 1}, prefix) == "e1", "half of it is worth less"
    assert balancer.choose(ENGINES, {"e2": 9, "e1": MARGIN}, prefix) in {"e0", "e3"}
    assert balancer.choose(("e0", "e3"), {"e3": 1}, prefix) == "e0", "others are gone"


def test_a_short_known_prefix_only_breaks_ties():
    balancer: Balancer[str] = Balancer()
    balancer.note("e2", prefix_hashes(TURN))

    assert balancer.choose(ENGINES, {}, prefix_hashes(TURN)) == "e2"
    assert balancer.choose(ENGINES, {"e2": 1}, prefix_hashes(TURN)) != "e2"


def test_the_least_recently_used_prefixes_are_forgotten():
    balancer: Balancer[str] = Balancer(max_prefixes=10)
    old, new = prefix_hashes(range(100, 180)), prefix_hashes(range(200, 280))
    balancer.note("e3", old)
    for _ in range(3):
        balancer.note("e2", new)
    assert balancer.choose(ENGINES, {}, old) == "e3"

    balancer.note("e2", prefix_hashes(range(300, 380)))

    assert balancer.choose(ENGINES, {}, old) != "e3"
    assert balancer.choose(ENGINES, {}, new) == "e2"


class Simulation:
    """Requests that arrive and end; each engine's cache holds all it was given."""

    def __init__(self) -> None:
        self.balancer: Balancer[str] = Balancer()
        self.load: Counter[str] = Counter()
        self.given: Counter[str] = Counter()
        self.cached: dict[str, set[bytes]] = {engine: set() for engine in ENGINES}
        self.hits = self.blocks = 0
        self.worst_gap = 0
        self._ends: list[tuple[float, str]] = []

    def arrive(self, at_s: float, prompt: tuple[int, ...], takes_s: float) -> None:
        while self._ends and self._ends[0][0] <= at_s:
            self.load[heapq.heappop(self._ends)[1]] -= 1
        prefix = prefix_hashes(prompt)
        engine = self.balancer.choose(ENGINES, self.load, prefix)
        self.balancer.note(engine, prefix)
        self.hits += sum(key in self.cached[engine] for key in prefix)
        self.blocks += len(prefix)
        self.cached[engine] |= set(prefix)
        self.load[engine] += 1
        self.given[engine] += 1
        heapq.heappush(self._ends, (at_s + takes_s, engine))
        loads = [self.load[each] for each in ENGINES]
        self.worst_gap = max(self.worst_gap, self.load[engine] - min(loads))


def test_one_prefix_for_all_does_not_make_one_engine_do_all():
    draw, simulation, at_s = random.Random(1), Simulation(), 0.0
    shared = tuple(range(50 * BLOCK_TOKENS))
    for _ in range(2000):
        at_s += draw.expovariate(20.0)
        own = tuple(draw.randrange(1000) for _ in range(2 * BLOCK_TOKENS))
        simulation.arrive(at_s, (*shared, *own), draw.expovariate(1 / 1.5))

    assert simulation.worst_gap <= MARGIN + 1
    assert max(simulation.given.values()) < 1.3 * min(simulation.given.values())
    assert simulation.hits / simulation.blocks > 0.9


def test_conversations_stay_where_they_are_under_an_even_load():
    draw, simulation, at_s = random.Random(2), Simulation(), 0.0
    talks = {talk: tuple(draw.randrange(1000) for _ in range(64)) for talk in range(100)}
    for _ in range(2000):
        at_s += draw.expovariate(20.0)
        talk = draw.randrange(100)
        simulation.arrive(at_s, talks[talk], draw.expovariate(1 / 0.5))
        talks[talk] = (*talks[talk], *(draw.randrange(1000) for _ in range(48)))

    assert simulation.worst_gap <= MARGIN + 1
    assert max(simulation.given.values()) < 1.3 * min(simulation.given.values())
    assert simulation.hits / simulation.blocks > 0.8
