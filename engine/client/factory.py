"""Makes offline clients: with engines of their own, in processes or in this one."""

import asyncio as aio
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, overload

import msgspec

from engine.client.core_client import EngineStartError, SyncEngineCoreClient
from engine.client.dp import DPLBAsyncMPClient
from engine.client.handshake import Handshake
from engine.client.launch import (
    ENGINE_MODULE,
    EngineProcess,
    LocalEngines,
    private_directory,
    remove_directory,
)
from engine.client.sync_mp import SyncMPClient, ignore_hop
from engine.config import ClientEndpoint, EngineConfig
from engine.wire.addresses import input_address, output_address

CLIENT_NAME = "offline"
EPOCH = 1
Fail = Callable[[str, int, str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class OfflinePlan:
    """The engines of an offline client."""

    config: EngineConfig
    """Of every engine; their ids are `e0`, `e1`, ..., and epochs and clients are set here."""
    num_engines: int = 1
    start_timeout_s: float = 600.0
    """For all engines together."""
    log_dir: Path | None = None
    """Where engines log, `e0.log`, ...; None: a directory that goes with the client."""
    module: str = ENGINE_MODULE
    """What `python -m` runs as an engine."""

    @property
    def engine_ids(self) -> tuple[str, ...]:
        """Ids of the engines."""
        return tuple(f"e{index}" for index in range(self.num_engines))


@overload
def make_client(
    plan: OfflinePlan, handshake: Handshake, *, multiprocess: bool, asyncio: Literal[False]
) -> SyncEngineCoreClient: ...
@overload
def make_client(
    plan: OfflinePlan, handshake: Handshake, *, multiprocess: bool, asyncio: Literal[True]
) -> DPLBAsyncMPClient: ...


def make_client(
    plan: OfflinePlan, handshake: Handshake, *, multiprocess: bool, asyncio: bool
) -> SyncEngineCoreClient | DPLBAsyncMPClient:
    """Start engines and return their client; when that fails, nothing is left behind.

    A synchronous client comes with ready engines. An asyncio one is made inside the running event
    loop, its engines load: run `client.run()` and wait for `handshake`.

    Args:
        plan: The engines.
        handshake: Takes note of their starts.
        multiprocess: Engines in processes of their own; else one engine in this process.
        asyncio: A client for an event loop.

    Raises:
        EngineStartError: an engine did not become ready.
        NotImplementedError: asyncio without multiprocess: the loop would stand still in each step.
        ValueError: several engines in this process.
    """
    if plan.num_engines < 1 or (plan.num_engines > 1 and not multiprocess):
        raise ValueError(f"{plan.num_engines} engines: one in this process, else at least one")
    if not multiprocess:
        if asyncio:
            raise NotImplementedError("an asyncio client needs an engine in another process")
        return _inproc(plan, handshake)
    return _async_mp(plan, handshake) if asyncio else _sync_mp(plan, handshake)


def _inproc(plan: OfflinePlan, handshake: Handshake) -> SyncEngineCoreClient:
    # imports the engine, and so torch
    from engine.client.inproc import ConfigError, InprocClient  # noqa: PLC0415

    config = msgspec.structs.replace(plan.config, engine_id=plan.engine_ids[0], epoch=EPOCH)
    try:
        return InprocClient(config, on_message=handshake.note)
    except ConfigError as error:
        raise EngineStartError(f"config_error: {error}") from error


def _sync_mp(plan: OfflinePlan, handshake: Handshake) -> SyncMPClient:
    run_dir = private_directory()
    try:
        client = SyncMPClient(CLIENT_NAME, EPOCH, run_dir, on_message=handshake.note)
    except BaseException:
        remove_directory(run_dir)
        raise
    try:
        start_engines(client, plan, run_dir, handshake, _weak(client.fail_engine))
        handshake.wait(plan.start_timeout_s)
    except BaseException:
        client.close()
        raise
    return client


def _async_mp(plan: OfflinePlan, handshake: Handshake) -> DPLBAsyncMPClient:
    run_dir = private_directory()
    try:
        client = DPLBAsyncMPClient(
            CLIENT_NAME,
            EPOCH,
            run_dir,
            plan.engine_ids,
            on_message=handshake.note,
            on_hop=ignore_hop,
        )
    except BaseException:
        remove_directory(run_dir)
        raise
    try:
        fail = partial(_soon, aio.get_running_loop(), _weak(client.fail_engine))
        start_engines(client, plan, run_dir, handshake, fail)
    except BaseException:
        client.close()
        raise
    return client


def start_engines(
    client: SyncMPClient | DPLBAsyncMPClient,
    plan: OfflinePlan,
    run_dir: Path,
    handshake: Handshake,
    fail: Fail,
) -> LocalEngines:
    """Start the plan's engines as the client's own: it ends them when it is closed.

    Args:
        client: Its sockets are in `run_dir`, which goes with it.
        plan: The engines.
        run_dir: From `private_directory`.
        handshake: Is told of deaths; `client` tells it the rest.
        fail: Called with (engine id, epoch, reason) when a process has ended, in any thread.

    Raises:
        EngineStartError: a process could not be started.
    """
    client.on_close(partial(remove_directory, run_dir))
    processes: list[EngineProcess] = []
    by_id: dict[str, EngineProcess] = {}

    def on_exit(engine_id: str, epoch: int, status: int) -> None:
        handshake.died(engine_id, status, by_id[engine_id].tail())
        fail(engine_id, epoch, f"its process ended with {status}")

    for engine_id in plan.engine_ids:
        config = msgspec.structs.replace(
            plan.config, engine_id=engine_id, epoch=EPOCH, clients=(_endpoint(run_dir),)
        )
        log_path = (plan.log_dir or run_dir) / f"{engine_id}.log"
        by_id[engine_id] = EngineProcess(config, log_path, on_exit, plan.module)
        processes.append(by_id[engine_id])
        client.expect(engine_id, EPOCH)
    engines = LocalEngines(processes)
    client.on_close(engines.stop)
    engines.start()
    return engines


def _endpoint(run_dir: Path) -> ClientEndpoint:
    return ClientEndpoint(
        name=CLIENT_NAME,
        input=input_address(run_dir, CLIENT_NAME),
        output=output_address(run_dir, CLIENT_NAME),
    )


def _weak(fail: Fail) -> Fail:
    """Return a call that does not keep the client alive."""
    reference = weakref.WeakMethod(fail)

    def fail_if_alive(engine_id: str, epoch: int, reason: str) -> None:
        method = reference()
        if method is not None:
            method(engine_id, epoch, reason)

    return fail_if_alive


def _soon(loop: aio.AbstractEventLoop, fail: Fail, engine_id: str, epoch: int, reason: str) -> None:
    """Call it in the event loop, unless that is closed."""
    if not loop.is_closed():
        loop.call_soon_threadsafe(fail, engine_id, epoch, reason)
