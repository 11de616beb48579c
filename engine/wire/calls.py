"""The utility calls: a closed union of structs, each with the type of its result.

Which of them is meant travels as the tag of the struct; nothing else is ever dispatched.
"""

from typing import Any, ClassVar, Generic, Literal, TypeVar

import msgspec

ResultT = TypeVar("ResultT")


class Call(msgspec.Struct, Generic[ResultT], frozen=True, kw_only=True, tag=True):
    """Base of the utility calls. `Result` is the type that the engine answers with."""

    Result: ClassVar[Any]


class SleepReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a `Sleep` achieved; resident bytes are measured, not computed."""

    level: Literal[1, 2]
    resident_before_bytes: int
    resident_after_bytes: int
    freed_bytes: int
    took_ns: int
    weights_bytes: int


class Sleep(Call[SleepReport], frozen=True):
    """Give memory back. Level 1 keeps the index of the checkpoint in memory, level 2 nothing.

    `wait` lets running requests finish (new ones are rejected as asleep meanwhile) for at most
    `timeout_s` and then fails without sleeping; `abort` ends them first. Sleeping already: no-op.
    """

    Result = SleepReport

    level: Literal[1, 2] = 1
    mode: Literal["wait", "abort"] = "wait"
    timeout_s: float = 60.0


class WakeReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a `Wake` did. `canary_ok`: the same greedy token as at the first start came out."""

    resident_bytes: int
    took_ns: int
    canary_ok: bool


class Wake(Call[WakeReport], frozen=True):
    """Undo `Sleep`; answers once the engine can serve again. Awake already: no-op."""

    Result = WakeReport


class Pong(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to `Ping`."""

    token_id: int | None
    took_ns: int


class Ping(Call[Pong], frozen=True):
    """Probe the engine. `deep` makes one real token through the scheduler's queue."""

    Result = Pong

    deep: bool = True


class RequestState(msgspec.Struct, frozen=True, kw_only=True):
    """One live request as the engine sees it."""

    request_id: str
    client: str
    state: Literal["waiting", "running"]
    prompt_tokens: int
    output_tokens: int
    computed_tokens: int
    num_blocks: int
    preemptions: int
    age_ns: int


class EngineState(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to `DumpState`."""

    phase: str
    step: int
    sleep_level: Literal[0, 1, 2]
    num_blocks: int
    free_blocks: int
    requests: tuple[RequestState, ...]
    cached_blocks: int = 0
    window_blocks: int = 0
    """KV blocks of the sliding-window layers, if the model has such."""
    free_window_blocks: int = 0


class DumpState(Call[EngineState], frozen=True):
    """Report every live request and the KV pool, for operators and tests."""

    Result = EngineState


class CacheReset(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to `ResetPrefixCache`."""

    dropped_blocks: int


class ResetPrefixCache(Call[CacheReset], frozen=True):
    """Forget all cached prefixes; blocks that running requests hold are forgotten, not taken."""

    Result = CacheReset


class AdapterState(msgspec.Struct, frozen=True, kw_only=True):
    """One LoRA adapter as an engine holds it."""

    name: str
    content_hash: str
    """Hex SHA-256 of its configuration and weights: its identity."""
    path: str
    rank: int
    num_bytes: int
    targets: tuple[str, ...]
    """Linear layers that it changes, `q_proj`, `down_proj`, ..."""
    pinned: bool
    active: bool
    """In a slot, so that a step can use it at once; else in host memory."""
    running_requests: int
    loaded_ns: int
    used_ns: int | None = None
    """When a request last asked for it."""
    resident: bool = True
    """In memory; else it is read again from its path when a request asks for it."""


class LoadAdapter(Call[AdapterState], frozen=True):
    """Load a PEFT adapter; answers when requests can use it. Read off the step loop.

    A name that is loaded already: the same content is a no-op, other content replaces it for new
    requests; running ones keep theirs. Errors: `invalid` with what is wrong with it.
    """

    Result = AdapterState

    name: str
    path: str
    pinned: bool = False


class AdapterUnloaded(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to `UnloadAdapter`."""

    name: str
    running_requests: int
    """Requests that use it to their end; its memory goes with the last."""


class UnloadAdapter(Call[AdapterUnloaded], frozen=True):
    """Take a name away; `invalid` when nothing is loaded under it."""

    Result = AdapterUnloaded

    name: str


class PinAdapter(Call[AdapterState], frozen=True):
    """Keep an adapter in its slot, or stop doing so."""

    Result = AdapterState

    name: str
    pinned: bool = True


class AdapterList(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to `ListAdapters`."""

    adapters: tuple[AdapterState, ...]
    max_loras: int
    """Slots: adapters that one step can use."""
    max_cpu_loras: int
    """Adapters kept in memory."""


class ListAdapters(Call[AdapterList], frozen=True):
    """Report every loaded adapter."""

    Result = AdapterList


class RecordingSet(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to `SetRecording`."""

    recording: bool


class SetRecording(Call[RecordingSet], frozen=True):
    """Record hops and steps from now on, or stop doing so; counts go on. A repeat is a no-op."""

    Result = RecordingSet

    recording: bool


class ProfileReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a profile became: files in the directory of the call, one artifact per rank."""

    profile_id: str
    files: tuple[str, ...]
    """Names inside the directory."""
    num_bytes: int
    first_step: int | None
    last_step: int | None
    started_ns: int
    ended_ns: int
    already: bool = False
    """No profile was running: nothing was written."""


class StartProfile(Call[ProfileReport], frozen=True):
    """Run torch's profiler over the next steps; answers when the files are written.

    With `steps` it ends by itself; else `StopProfile` (or `max_s`) ends it and answers too. One
    at a time: `busy`. An idle engine is profiled when it gets work, until `max_s`.
    """

    Result = ProfileReport

    profile_id: str
    directory: str
    """Exists, is ours, and is written to by nobody else."""
    steps: int | None = None
    max_s: float = 60.0
    with_stacks: bool = False
    with_memory: bool = False


class StopProfile(Call[ProfileReport], frozen=True):
    """End the running profile now. None running: a no-op that says `already`."""

    Result = ProfileReport


AnyCall = (
    Sleep
    | Wake
    | Ping
    | DumpState
    | ResetPrefixCache
    | LoadAdapter
    | UnloadAdapter
    | PinAdapter
    | ListAdapters
    | SetRecording
    | StartProfile
    | StopProfile
)
"""The closed union of utility calls: nothing else is ever dispatched."""
