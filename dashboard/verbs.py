"""What an operator can order, and how its end is told in one line."""

from dataclasses import dataclass
from typing import Any, Final, cast

from appliance.supervisor.admin.schemas import (
    LoadAdapterBody,
    Operation,
    OperationKind,
    SleepBody,
    StartProfileBody,
)
from dashboard.client.problems import ApiProblem, UnreachableError
from dashboard.source.frames import Source
from dashboard.view.lines import BAD, GOOD
from dashboard.view.text import age, clean, milliseconds, short_id, size

WAIT_S: Final = 25.0
"""Of one long poll; the wait as a whole has no end, an operation has."""
_SHOWN_IN_SECONDS: Final = 0.1
_PAST: Final[dict[OperationKind, str]] = {
    "sleep": "slept",
    "wake": "woke",
    "restart": "restarted",
    "reset-prefix-cache": "reset the prefix cache of",
    "lora.load": "loaded",
    "lora.unload": "unloaded",
    "lora.pin": "pinned",
    "lora.unpin": "unpinned",
    "profile": "profiled",
}


@dataclass(frozen=True, slots=True)
class Sleep:
    """Put an engine to sleep."""

    engine_id: str
    body: SleepBody


@dataclass(frozen=True, slots=True)
class Wake:
    """Wake an engine."""

    engine_id: str


@dataclass(frozen=True, slots=True)
class Restart:
    """Restart an engine."""

    engine_id: str


@dataclass(frozen=True, slots=True)
class Abort:
    """End a request."""

    request_id: str


@dataclass(frozen=True, slots=True)
class LoadAdapter:
    """Load an adapter from a directory of the server."""

    name: str
    path: str
    pinned: bool


@dataclass(frozen=True, slots=True)
class UnloadAdapter:
    """Unload an adapter."""

    name: str


@dataclass(frozen=True, slots=True)
class PinAdapter:
    """Pin or unpin an adapter."""

    name: str
    pinned: bool


@dataclass(frozen=True, slots=True)
class Profile:
    """Record what an engine does."""

    body: StartProfileBody


EngineVerb = Sleep | Wake | Restart | Profile
AdapterVerb = LoadAdapter | UnloadAdapter | PinAdapter
Verb = EngineVerb | AdapterVerb | Abort


def told(verb: Verb) -> str:
    """Say what was ordered: `sleep e0`, `unload sql-lora`."""
    match verb:
        case Abort(request_id):
            return f"abort {short_id(request_id)}"
        case LoadAdapter(name) | UnloadAdapter(name):
            return f"{type(verb).__name__.removesuffix('Adapter').lower()} {clean(name)}"
        case PinAdapter(name, pinned):
            return f"{'pin' if pinned else 'unpin'} {clean(name)}"
        case Profile(body):
            return f"profile {clean(body.engine)}"
        case Sleep() | Wake() | Restart():
            return f"{type(verb).__name__.lower()} {clean(verb.engine_id)}"


@dataclass(frozen=True, slots=True)
class Note:
    """One line for the operator."""

    text: str
    tone: str = GOOD
    hint: str | None = None

    @property
    def is_problem(self) -> bool:
        """Whether something did not work."""
        return self.tone == BAD


async def carry_out(source: Source, verb: Verb) -> Note:
    """Order `verb`, wait for its end, and tell how it went; never raises what the server says."""
    try:
        if isinstance(verb, Abort):
            answer = await source.abort(verb.request_id)
            return Note(f"aborted {short_id(answer.id)} after {answer.completion_tokens} tokens")
        return await _operate(source, verb)
    except (ApiProblem, UnreachableError) as error:
        return problem_note(error)


async def _operate(source: Source, verb: EngineVerb | AdapterVerb) -> Note:
    operation = await _begin(source, verb)
    while operation.state in ("queued", "running"):
        operation = await source.operation(operation.id, WAIT_S)
    return operation_note(operation)


async def _begin(source: Source, verb: EngineVerb | AdapterVerb) -> Operation:
    match verb:
        case Sleep():
            return await source.sleep(verb.engine_id, verb.body)
        case Wake():
            return await source.wake(verb.engine_id)
        case Restart():
            return await source.restart(verb.engine_id)
        case Profile():
            return await source.insight.start_profile(verb.body)
        case _:
            return await _begin_adapter(source, verb)


async def _begin_adapter(source: Source, verb: AdapterVerb) -> Operation:
    match verb:
        case LoadAdapter(name, path, pinned):
            body = LoadAdapterBody(path=path, pinned=pinned)
            return await source.load_adapter(name, body)
        case UnloadAdapter(name):
            return await source.unload_adapter(name)
        case PinAdapter(name, pinned):
            return await source.pin_adapter(name, pinned=pinned)


def problem_note(error: ApiProblem | UnreachableError) -> Note:
    """What the server (or its absence) says, with its advice."""
    if isinstance(error, UnreachableError):
        return Note(clean(str(error)), BAD, "is the server running?")
    if error.is_absent_route:
        return Note("this server cannot do that", BAD, "it is older than this dashboard")
    hint = clean(error.hint) if error.hint else None
    if hint is None and error.allowed_actions:
        hint = f"possible: {', '.join(clean(action) for action in error.allowed_actions)}"
    return Note(f"{clean(str(error))} ({clean(error.code)})", BAD, hint)


def operation_note(operation: Operation) -> Note:
    """How an operation ended: `slept e0: freed 268 MB in 0.4 s`."""
    target = clean(operation.target)
    if operation.state != "done":
        why = f": {clean(operation.error)}" if operation.error else ""
        return Note(f"{operation.kind} {target} {operation.state}{why}", BAD)
    facts = _facts(operation.result or {})
    took_s = _took_s(operation)
    took = "" if took_s is None else f" in {_span(took_s)}"
    text = f"{_PAST[operation.kind]} {target}{': ' if facts else ''}{facts}{took}"
    return Note(text, hint=_hint(operation))


def _hint(operation: Operation) -> str | None:
    """Where the files of a profile are, and how to open them."""
    if operation.kind != "profile":
        return None
    profile_id = (operation.result or {}).get("profile_id")
    get = f", `quarterdeck profile get {clean(profile_id)}` fetches them" if profile_id else ""
    return f"7 lists its files{get}"


def _facts(result: dict[str, Any]) -> str:
    freed, resident = result.get("freed_bytes"), result.get("resident_bytes")
    if isinstance(freed, int | float):
        return f"freed {size(freed)}"
    if isinstance(resident, int | float):
        return f"{size(resident)} resident"
    return _adapter_facts(result)


def _adapter_facts(result: dict[str, Any]) -> str:
    if isinstance(files := result.get("files"), list):
        first, last = result.get("first_step"), result.get("last_step")
        return f"steps {first} to {last}, {len(cast('list[Any]', files))} files"
    rank, num_bytes = result.get("rank"), result.get("num_bytes")
    if isinstance(rank, int) and isinstance(num_bytes, int | float):
        return f"rank {rank}, {size(num_bytes)}"
    running = result.get("running_requests")
    return f"{running} requests still use it" if running else ""


def _span(seconds: float) -> str:
    return age(seconds) if seconds >= _SHOWN_IN_SECONDS else milliseconds(seconds * 1000)


def _took_s(operation: Operation) -> float | None:
    if operation.ended_at is None:
        return None
    return (operation.ended_at - operation.created_at).total_seconds()
