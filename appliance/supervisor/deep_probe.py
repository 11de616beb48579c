"""Asks idle engines for a real token now and then.

A heartbeat proves that an engine's loop turns, not that its model still computes. A busy engine
proves that by its tokens; an idle one is asked.
"""

import asyncio
import logging
from collections.abc import Iterable

from appliance.supervisor.lifecycle import EngineState
from appliance.supervisor.lifecycle_events import HeartbeatMissed
from appliance.supervisor.managed_engine import ManagedEngine
from engine.client.core_client import (
    AsyncEngineCoreClient,
    EngineClientError,
    UtilityTimeoutError,
)
from engine.wire.calls import Ping
from engine.wire.header import new_context

logger = logging.getLogger(__name__)

PROBE_EVERY_S = 30.0
PROBE_TIMEOUT_S = 20.0
"""The probe waits its turn when load comes at the same moment."""


async def probe_engines(client: AsyncEngineCoreClient, engines: Iterable[ManagedEngine]) -> None:
    """Probe every idle engine, again and again; one that gives no token counts as hanging."""
    engines = tuple(engines)
    while True:
        await asyncio.sleep(PROBE_EVERY_S)
        async with asyncio.TaskGroup() as probes:
            for engine in engines:
                if _is_idle(engine):
                    probes.create_task(_probe(client, engine))


def _is_idle(engine: ManagedEngine) -> bool:
    stats = engine.facts.stats
    is_ready = engine.life.state is EngineState.READY
    return is_ready and stats is not None and stats.running + stats.waiting == 0


async def _probe(client: AsyncEngineCoreClient, engine: ManagedEngine) -> None:
    epoch = engine.life.epoch
    try:
        await client.call(
            engine.engine_id, Ping(deep=True), timeout_s=PROBE_TIMEOUT_S, context=new_context()
        )
    except UtilityTimeoutError as error:
        if engine.life.epoch == epoch:
            logger.error("%s makes no token: %s", engine.engine_id, error)  # noqa: TRY400 - as said
            engine.apply(HeartbeatMissed(f"no token for a deep probe: {error}"))
    except EngineClientError as error:  # it goes to sleep, ends or has ended: others see to that
        logger.debug("%s was not probed: %s", engine.engine_id, error)
