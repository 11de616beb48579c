"""Builds the evidence of requests as they would be, from what happened to them."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from appliance.telemetry.cohort import cohort_member
from appliance.telemetry.evidence import CohortMember, Evidence, StepFacts
from appliance.telemetry.records import RequestRecord
from engine.wire.messages import PrefillChunk, Timeline
from tests.appliance.telemetry.workload import MS, choice, record

START_NS = 10_000 * MS


@dataclass
class Step:
    """One decode step to come; `ms` is what it takes in all."""

    ms: float = 5.0
    prompt_tokens: int = 0
    requests: int = 2
    prompts: int = 1
    """Requests that the prompt tokens are of."""


@dataclass
class Story:
    """What happened to a request; the defaults are what usually does. Times are milliseconds."""

    front: float = 4.0
    dispatch: float = 1.0
    queue: float = 0.2
    prepared: float | None = None
    """After it came to the engine."""
    prompt: int = 100
    cached: int = 80
    prefill: float = 10.0
    tokens: int = 40
    stream: float = 1.0
    batch: int = 2
    waited_for: str | None = None
    preempted: Sequence[tuple[float, float]] = ()
    """(after the first token, for how long)."""
    recomputed: int = 0
    step: Callable[[int], Step] = field(default=lambda _: Step())
    queue_steps: Sequence[Step] = ()
    dispatch_steps: Sequence[Step] = ()
    record: dict[str, Any] = field(default_factory=dict)
    choice: dict[str, Any] = field(default_factory=dict)


class Clock:
    """Lays steps one after the other."""

    def __init__(self, first_step: int) -> None:
        self.number = first_step
        self.steps: list[StepFacts] = []

    def add(self, start_ns: int, step: Step, prompt: int = 0, own: int = 0) -> int:
        end_ns = start_ns + int(step.ms * MS)
        self.steps.append(
            StepFacts(
                engine_id="e0",
                epoch=1,
                step=self.number,
                start_ns=start_ns,
                scheduled_ns=start_ns + 1000,
                built_ns=start_ns + 2000,
                forwarded_ns=end_ns - 2000,
                executed_ns=end_ns - 1000,
                end_ns=end_ns,
                prefill_tokens=prompt + own,
                decode_tokens=max(0, step.requests - step.prompts * (prompt + own > 0)),
                requests=step.requests,
                used_blocks=4,
                preempted=0,
                waiting=0,
                rows=step.requests,
            )
        )
        self.number += 1
        return end_ns


def tell(story: Story) -> tuple[RequestRecord, list[StepFacts]]:
    """Return the record and the steps of a story."""
    clock = Clock(100)
    tokenized_ns = START_NS + int(story.front * MS)
    at_ns = tokenized_ns
    for step in story.dispatch_steps:
        at_ns = clock.add(at_ns, step, step.prompt_tokens)
    received_ns = tokenized_ns + int(story.dispatch * MS)
    at_ns = received_ns
    for step in story.queue_steps:
        at_ns = clock.add(at_ns, step, step.prompt_tokens)
    scheduled_ns = received_ns + int(story.queue * MS)
    first_step = clock.number
    own = story.prompt - story.cached
    first_ns = clock.add(scheduled_ns, Step(story.prefill, requests=story.batch), own=own)
    chunk = PrefillChunk(start_ns=scheduled_ns, end_ns=first_ns, tokens=own, step=first_step)
    at_ns, away = first_ns, list(story.preempted)
    preempted: list[int] = []
    resumed: list[int] = []
    for index in range(story.tokens - 1):
        while away and at_ns - first_ns >= away[0][0] * MS:
            _, lasts = away.pop(0)
            preempted.append(at_ns)
            back_ns = at_ns + int(lasts * MS)
            while at_ns < back_ns:
                at_ns = clock.add(at_ns, Step(5.0))
            resumed.append(at_ns)
        step = story.step(index)
        at_ns = clock.add(at_ns, step, step.prompt_tokens)
    ended_ns = at_ns + int(story.stream * MS)
    times = Timeline(
        received_ns=received_ns,
        scheduled_ns=scheduled_ns,
        first_token_ns=first_ns,
        last_token_ns=at_ns,
        finished_ns=at_ns,
        first_step=first_step,
        last_step=clock.number - 1,
        chunks=(chunk,),
        preempted_ns=tuple(preempted),
        resumed_ns=tuple(resumed),
        max_batch=story.batch,
        cached_tokens=story.cached,
        waited_for=story.waited_for,
        recomputed_tokens=story.recomputed,
        prepared_ns=None
        if story.prepared is None
        else received_ns + int(story.prepared * MS),
    )  # fmt: skip
    chosen = {
        "prompt_tokens": story.prompt,
        "cached_tokens": story.cached,
        "completion_tokens": story.tokens,
    }
    fields = {
        "authenticated_ns": START_NS + MS // 4,
        "admitted_ns": START_NS + MS // 2,
        "tokenized_ns": tokenized_ns,
        "first_frame_ns": first_ns + MS // 2,
        "last_token_ns": at_ns + MS // 4,
        "ended_ns": ended_ns,
        "choices": (choice(0, times, **(chosen | story.choice)),),
    }
    made = record(received_ns=START_NS, **(fields | chosen | story.record))
    return made, clock.steps


def usual_story(rng: random.Random) -> Story:
    """One of the many requests that nothing happened to."""
    pace = rng.uniform(0.9, 1.15)
    return Story(
        front=rng.uniform(3, 5),
        dispatch=rng.uniform(0.5, 2),
        queue=rng.uniform(0.1, 1),
        prompt=rng.randint(90, 110),
        cached=80,
        prefill=rng.uniform(8, 12),
        tokens=rng.randint(30, 50),
        stream=rng.uniform(0.5, 2),
        step=lambda _: Step(5.0 * pace),
    )


def cohort(size: int = 60, seed: int = 1, **changes: Any) -> list[CohortMember]:
    """Return the others of the hour."""
    rng = random.Random(seed)
    members: list[CohortMember] = []
    for _ in range(size):
        story = usual_story(rng)
        for name, value in changes.items():
            setattr(story, name, value)
        members.append(cohort_member(tell(story)[0], 0))
    return members


def evidence(
    story: Story, members: Sequence[CohortMember] | None = None, **changes: Any
) -> Evidence:
    """Return all that is known about a request with this story."""
    made, steps = tell(story)
    made = replace(made, **changes.pop("record", {}))
    return Evidence(
        record=made,
        cohort=cohort() if members is None else members,
        steps=changes.pop("steps", steps),
        **changes,
    )
