"""The gateway's process: sockets in, one TaskGroup that owns every task, and an orderly end."""

import asyncio
import contextlib
import logging
import re
import signal
import socket
from pathlib import Path
from typing import Final

import uvicorn
from starlette.types import ASGIApp

from appliance.control_link.gateway_end import GatewayLink
from appliance.control_link.messages import (
    AbortHeld,
    AbortResult,
    FleetState,
    GatewayHello,
    Shutdown,
    ToGateway,
    WakeEngine,
)
from appliance.embedded_server import EmbeddedServer
from appliance.gateway.app import DataPlaneApp
from appliance.gateway.config import ConfigError, GatewayConfig
from appliance.gateway.data_plane import DataPlane, Timing
from appliance.gateway.engine_errors import request_aborted
from appliance.gateway.http_protocol import DeadlineProtocol
from appliance.gateway.ledger import Ledger
from appliance.gateway.openai.errors import ApiError
from appliance.gateway.records import RecordBuffer
from appliance.gateway.reporter import Reporter
from appliance.telemetry import names
from appliance.telemetry.accounts import Accounts
from appliance.telemetry.loop_lag import LoopLag
from engine.client.async_mp import AsyncMPClient
from engine.wire.messages import FromEngine

logger = logging.getLogger(__name__)

KEEP_ALIVE_S: Final = 65
BACKLOG: Final = 2048
FLUSH_S: Final = 2.0
"""For error frames to reach their readers after the drain deadline."""
HEX_ID: Final = re.compile(r"[0-9a-f]{24}")


class Gateway:
    """One gateway: everything it owns, and its life.

    Args:
        config: From the supervisor.
        pid: Of this process.
        timing: Deadlines of the answering side.
    """

    def __init__(self, config: GatewayConfig, pid: int, timing: Timing | None = None) -> None:
        self._config = config
        self._pid = pid
        run_dir = Path(config.run_dir)
        self.accounts = Accounts(config.name, config.epoch)
        records = RecordBuffer(config.name, config.epoch)
        self.link = GatewayLink(config.name, config.epoch, run_dir, on_message=self._take)
        client = AsyncMPClient(
            config.name, config.epoch, run_dir, on_message=_ignore, on_hop=records.hop
        )
        self.plane = DataPlane(
            client=client,
            ledger=Ledger(self.accounts, config.name),
            records=records,
            wake_engine=self._wake_engine,
            strict_parameters=config.strict_parameters,
            cors_origins=config.cors_origins,
            timing=timing or Timing(),
        )
        self.plane.lag = LoopLag(self.accounts.histogram(names.LOOP_LAG, (config.name,)))
        self._reporter = Reporter(self.plane, self.link, self.accounts, config.name)
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self._drain_s = config.drain_s

    async def run(self) -> None:
        """Serve until told to stop, then drain and say the last words."""
        hello = GatewayHello(
            name=self._config.name,
            index=self._config.index,
            epoch=self._config.epoch,
            pid=self._pid,
        )
        servers = self._servers()  # raises before anything runs
        self.plane.lag.start()
        async with asyncio.TaskGroup() as tasks:
            serving = [tasks.create_task(server.serve(sockets=[s])) for server, s in servers]
            helpers = [
                tasks.create_task(self.link.run(hello)),
                tasks.create_task(self.plane.client.run()),
                tasks.create_task(self.plane.texts.run()),
                tasks.create_task(self._reporter.run()),
            ]
            await self._stop.wait()
            await self._drain()
            for server, _ in servers:
                server.should_exit = True
            await asyncio.wait(serving)
            self._reporter.stop()
            for task in helpers:
                task.cancel()
        self.plane.lag.stop()
        self.plane.client.close()
        self.link.close()

    def stop(self) -> None:
        """Drain and end; the second call does not wait for the drain."""
        if self._stop.is_set():
            self._hurry.set()
        self.plane.is_stopping = True
        self._stop.set()

    # ------------------------------------------------------------ listeners

    def _servers(self) -> list[tuple[EmbeddedServer, socket.socket]]:
        app = DataPlaneApp(self.plane)
        config = self._config
        tcp = socket.socket(fileno=config.tcp_fd)
        servers = [(_server(app.public, cert=config.tls_cert, key=config.tls_key), tcp)]
        if config.unix_fd is not None:
            servers.append((_server(app.local), socket.socket(fileno=config.unix_fd)))
        return servers

    # ------------------------------------------------------------ control link

    def _take(self, message: ToGateway) -> None:
        match message:
            case FleetState():
                self.plane.apply(message)
            case AbortHeld():
                self._abort(message)
            case Shutdown(drain_s=drain_s):
                self._drain_s = drain_s
                self.stop()

    def _abort(self, message: AbortHeld) -> None:
        """End a request by any form of its id: the 24 hex digits count."""
        digits = HEX_ID.search(message.request_id)
        live = self.plane.live.get(digits.group()) if digits else None
        tokens = live.journey.completion_tokens if live else 0
        if live is not None:
            live.interrupt.end(request_aborted())
        answer = AbortResult(
            call_id=message.call_id, found=live is not None, completion_tokens=tokens
        )
        self.link.send(answer)

    def _wake_engine(self, engine_id: str, request_id: str) -> None:
        self.link.send(WakeEngine(engine_id=engine_id, request_id=request_id))

    # ------------------------------------------------------------ end

    async def _drain(self) -> None:
        """Let requests finish until the deadline, then end them with an error."""
        if await self._idle(self._drain_s):
            return
        logger.warning("%d requests are ended at the drain deadline", len(self.plane.live))
        message = "The server is shutting down."
        self.plane.end_all(ApiError("server_shutting_down", message, retry_after_s=5))
        self._hurry.clear()
        await self._idle(FLUSH_S)

    async def _idle(self, timeout_s: float) -> bool:
        """Wait until no request is live; false when time is up or somebody is in a hurry."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s), asyncio.TaskGroup() as tasks:
                idle = tasks.create_task(self.plane.idle.wait())
                hurry = tasks.create_task(self._hurry.wait())
                await asyncio.wait({idle, hurry}, return_when=asyncio.FIRST_COMPLETED)
                idle.cancel()
                hurry.cancel()
        return self.plane.idle.is_set()


def _server(app: ASGIApp, *, cert: str | None = None, key: str | None = None) -> EmbeddedServer:
    config = uvicorn.Config(
        app,
        loop="none",
        http=DeadlineProtocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        backlog=BACKLOG,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=1,
        ssl_certfile=cert,
        ssl_keyfile=key,
    )
    try:
        config.load()
    except OSError as error:  # ssl errors are OSErrors
        raise ConfigError(f"the TLS certificate or key cannot be used: {error}") from error
    return EmbeddedServer(config)


def _ignore(engine_id: str, epoch: int, message: FromEngine) -> None:
    """Engines tell gateways of their start too; the supervisor's word counts."""


async def serve(config: GatewayConfig, pid: int) -> None:
    """Run a gateway as this process: SIGTERM drains, SIGINT is the supervisor's business."""
    gateway = Gateway(config, pid)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, gateway.stop)
    await gateway.run()
