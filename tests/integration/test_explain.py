"""`quarterdeck explain` on a real appliance: causes are staged, and named.

The truth of each request is fixed by what was done to it. A verdict is right when the first cause
that it names, without reservation, did it, and all that did it are named; confidently wrong when it
names something else without reservation, or says that nothing was slow. All others do not know.
"""

import json
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.appliance_process import wait_until
from tests.integration.staged_causes import Stage, Victim, start_stage

pytestmark = pytest.mark.process

RIGHT, WRONG, UNSURE = "right", "wrong", "does not know"
BUSY_SHARE = 0.3
"""Of the machine's CPUs, taken by others while a request ran."""


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    root = Path(tempfile.mkdtemp(prefix="qd-it-", dir="/tmp"))
    made = start_stage(root)
    try:
        yield made
    finally:
        made.load.done.set()
        made.load.join()
        made.appliance.stop()
        shutil.rmtree(root, ignore_errors=True)


def explained(stage: Stage, victim: Victim) -> dict[str, Any]:
    def known() -> Any:
        answer = stage.appliance.admin(f"/admin/v1/traces/{victim.request_id}/explanation")
        return answer.json() if answer.status_code == 200 else None

    return wait_until(known, 10, f"explanation of {victim.request_id}")


def judge(victim: Victim, found: dict[str, Any]) -> str:
    """Where others took much of the machine, that steps were slow is true as well."""
    causes = found["causes"]
    named = {cause["kind"] for cause in causes}
    if not causes:
        return WRONG if victim.truth else RIGHT
    if causes[0]["confidence"] == "weak":
        return UNSURE
    true = victim.truth | ({"slow_steps"} if victim.others >= BUSY_SHARE else set())
    if causes[0]["kind"] not in true:
        return WRONG
    return RIGHT if victim.truth <= named else UNSURE


def confusion(stage: Stage) -> tuple[Counter[str], str]:
    """Judge all victims; return the counts, and a table of what was named for what was staged."""
    stage.settle()
    counts: Counter[str] = Counter()
    named: Counter[tuple[str, str, str]] = Counter()
    lines: list[str] = []
    for victim in stage.victims:
        found = explained(stage, victim)
        result = judge(victim, found)
        counts[result] += 1
        first = found["causes"][0]["kind"] if found["causes"] else "not_slow"
        named[victim.name, first, result] += 1
        if result != RIGHT:
            causes = [(c["kind"], c["share"], c["confidence"]) for c in found["causes"]]
            lines.append(f"  {result}: {victim.name} {causes}, others {victim.others:.2f}")
            lines.append(f"    {found['verdict']}")
    table = [
        f"  {staged:20} -> {first:20} {result:14} {count}"
        for (staged, first, result), count in sorted(named.items())
    ]
    head = f"{dict(counts)}, {stage.misfires} misfires"
    return counts, "\n".join([head, *table, *lines])


def play_round(stage: Stage) -> None:
    """Every cause but the death of an engine, and some of them together."""
    stage.queue(5)
    for _ in range(2):
        stage.cold_prefix()
        stage.engine_stops()
        stage.gateway_stops()
        stage.long_output()
    stage.calm(3)
    stage.preemption()
    stage.prompt_between()
    stage.prompt_before()
    stage.reset_cache()
    stage.long_prompt()
    stage.calm(3)
    stage.asleep()
    stage.slow_client()
    stage.slow_upload()
    stage.grammar()
    stage.adapter()
    stage.calm(3)
    stage.queue_and_slow_client()
    stage.cold_and_stop()
    stage.long_and_stop()
    stage.negatives(3)


@pytest.mark.timeout(300)
def test_staged_causes_are_named(stage: Stage):
    stage.calm(16)

    play_round(stage)

    counts, table = confusion(stage)
    print(table)
    total = counts.total()
    assert total >= 15, table
    assert counts[RIGHT] >= 0.8 * total, table
    assert counts[WRONG] <= 0.1 * total, table


def test_the_command_prints_verdict_evidence_and_phases(stage: Stage):
    victim = next(v for v in stage.victims if v.name == "queue")

    table = stage.appliance.cli("explain", victim.request_id)
    slowest = stage.appliance.cli("explain", "--slowest", "-o", "json")
    moment = stage.appliance.cli("explain", "--at", "-5s", "--window", "120")

    assert table.returncode == 0, table.stderr
    assert "in the queue" in table.stdout
    assert "PHASE" in table.stdout
    assert "compared with" in table.stderr
    assert json.loads(slowest.stdout)["cohort_size"] > 0
    assert moment.returncode == 0, moment.stderr
    assert "requests waited for a place on e0" in moment.stdout
    assert "preemption" in moment.stdout


@pytest.mark.prove
@pytest.mark.timeout(1500)
def test_two_hundred_staged_causes_are_named(stage: Stage):
    stage.calm(40)
    stage.calm_adapters(16)

    stage.engine_dies(6)
    while stage.settle() < 206:  # the last settling may drop some more
        stage.calm(50)
        play_round(stage)
        if len(stage.victims) in range(90, 130):
            stage.engine_dies(6)

    counts, table = confusion(stage)
    print(table)
    total = counts.total()
    assert total >= 200, table
    assert counts[RIGHT] >= 0.95 * total, table
    assert counts[WRONG] <= 0.02 * total, table
