"""One running instance: its files, its keys, its supervisor and its control plane, start to end."""

import asyncio
import contextlib
import logging
import os
import sqlite3
import ssl
import sys
import time
from collections.abc import Generator
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from appliance.config.key_files import BadKeyError
from appliance.config.paths import state_dir as find_state_dir
from appliance.config.settings import Settings
from appliance.model_store.packs import ModelStoreError
from appliance.model_store.resolve import ResolvedModel
from appliance.supervisor.admin.schemas import EngineRow, SystemInfo
from appliance.supervisor.desired_state import NewerStateError, StateDatabase, open_state
from appliance.supervisor.key_store import KeyRing
from appliance.supervisor.launcher.identity import identity_of
from appliance.supervisor.launcher.local import LocalLauncher
from appliance.supervisor.listeners import Listeners, bind_unix
from appliance.supervisor.plans import plan_fleet, resolve_models
from appliance.supervisor.run_directory import InstanceError, RunDirectory, StateLock
from appliance.supervisor.shutdown import Shutdown
from appliance.supervisor.start_card import StartFacts, start_card
from appliance.supervisor.start_progress import StartProgress
from appliance.supervisor.supervisor import Supervisor
from appliance.telemetry.hub import Hub, HubConfig
from engine.wire.addresses import check_run_dir

if TYPE_CHECKING:
    from appliance.supervisor.admin_server import AdminServer

logger = logging.getLogger(__name__)

STATE_FILE = "state.sqlite3"
TRACES_FILE = "traces.sqlite3"
FAILED = 1
USAGE = 2
"""The model that was asked for is none."""

_REFUSALS = (BadKeyError, ModelStoreError, NewerStateError, InstanceError)
"""What the operator can put right; told in one line, without a traceback."""


def run_instance(settings: Settings, listeners: Listeners, executable: Path | None) -> int:
    """Run on sockets that listen already; return the exit code."""
    _log_to_stderr(settings.log_level)
    try:
        _check_certificate(settings)
        models = resolve_models(settings)
        directory = find_state_dir(settings.state_dir)
        with contextlib.ExitStack() as stack:
            with _told_in_a_line(directory):
                stack.callback(StateLock(directory).release)
                run = RunDirectory(directory)
                stack.callback(run.remove)
                check_run_dir(run.path)
                state = open_state(directory / STATE_FILE)
                stack.callback(state.close)
                instance = Instance(settings, listeners, models, directory, run, state)
            instance.introduce(executable)
            return asyncio.run(instance.run())
    except _REFUSALS as error:
        sys.stderr.write(f"quarterdeck: {error}\n")
        return USAGE if isinstance(error, ModelStoreError) else FAILED


@contextlib.contextmanager
def _told_in_a_line(directory: Path) -> Generator[None]:
    """Map what a full, read-only or damaged disk raises. Raises InstanceError."""
    try:
        yield
    except OSError as error:
        raise InstanceError(f"cannot use the state directory {directory}: {error}") from error
    except sqlite3.Error as error:
        raise InstanceError(f"cannot use {directory / STATE_FILE}: {error}") from error


class Instance:
    """Everything of one run, once its files are in place."""

    def __init__(
        self,
        settings: Settings,
        listeners: Listeners,
        models: list[ResolvedModel],
        directory: Path,
        run: RunDirectory,
        state: StateDatabase,
    ) -> None:
        self._settings = settings
        self._listeners = listeners
        self._directory = directory
        self._run = run
        self._state = state
        self._keys = KeyRing.open(state.connection, settings)
        listeners.data_unix = bind_unix(run.data_socket)
        listeners.admin_unix = bind_unix(run.admin_socket)
        self._plan = plan_fleet(settings, models, run.path, listeners)
        self._progress = StartProgress()
        run.publish_instance(
            {
                "host": settings.host,
                "port": listeners.data_port,
                "admin_host": settings.admin_host,
                "admin_port": listeners.admin_port,
            }
        )

    def introduce(self, executable: Path | None) -> None:
        """Print the start card."""
        facts = StartFacts(
            model=self._plan.engines[0].served_names[0],
            data_url=self._url(self._settings.host, self._listeners.data_port),
            admin_url=self._url(self._settings.admin_host, self._listeners.admin_port),
            state_dir=self._directory,
            minted=self._keys.minted,
            has_auth=self._plan.auth_required,
            tls_cert=self._settings.tls_cert,
            adapter_root=next(iter(self._plan.adapter_roots), None),
            executable=executable,
        )
        _say(start_card(facts))

    async def run(self) -> int:
        """Run until a signal has ended the instance; return the exit code."""
        shutdown = Shutdown(self._settings.drain_s)
        with shutdown.signals():
            hub = Hub(self._hub_config())
            launcher = LocalLauncher(_forward_line, on_spawn=self._run.note_child)
            supervisor = Supervisor(
                self._plan, self._state, self._keys, hub, launcher=launcher, system=self._system()
            )
            supervisor.on_progress = lambda row: self._show(supervisor, row)
            async with asyncio.TaskGroup() as tasks:
                ending = tasks.create_task(shutdown.run(supervisor))
                tasks.create_task(self._serve_control_plane(supervisor, hub))
                await supervisor.run()
                ending.cancel()
        return 0

    async def _serve_control_plane(self, supervisor: Supervisor, hub: Hub) -> None:
        """Import the web framework only now, beside the loop: the children start meanwhile."""
        server = await asyncio.to_thread(
            _control_plane, supervisor, hub, self._keys, self._settings
        )
        assert self._listeners.admin_unix is not None
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(server.run(self._listeners.admin, self._listeners.admin_unix))
            await supervisor.stopping.wait()
            server.stop()

    def _show(self, supervisor: Supervisor, row: EngineRow) -> None:
        """Print how the start goes, a line per step, and once that all is ready."""
        line = self._progress.line(row, time.monotonic())
        if line is not None and not supervisor.stopping.is_set():
            _say(f"  {line}\n")
        if self._progress.first_ready(is_ready=supervisor.startup()[0]):
            _say(f"\nready in {_age_s():.1f} s\n")

    def _hub_config(self) -> HubConfig:
        settings = self._settings
        return HubConfig(
            trace_db_path=self._directory / TRACES_FILE,
            trace_store_bytes=settings.trace_store_bytes,
            trace_store_hours=settings.trace_store_hours,
            otlp_endpoint=settings.otlp_endpoint,
            trace_ratio=settings.trace_ratio,
            version=version("quarterdeck"),
            instance=self._run.path.name,
        )

    def _system(self) -> SystemInfo:
        return SystemInfo(
            version=version("quarterdeck"),
            pid=os.getpid(),
            started_at=datetime.now(UTC) - timedelta(seconds=_age_s()),
            state_dir=str(self._directory),
            run_dir=str(self._run.path),
            data_plane=self._url(self._settings.host, self._listeners.data_port),
            control_plane=self._url(self._settings.admin_host, self._listeners.admin_port),
            data_socket=str(self._run.data_socket),
            admin_socket=str(self._run.admin_socket),
            on_asleep=self._settings.on_asleep,
            adapter_roots=[str(root) for root in self._plan.adapter_roots],
        )

    def _url(self, host: str, port: int) -> str:
        scheme = "http" if self._settings.tls_cert is None else "https"
        shown = f"[{host}]" if ":" in host and not host.startswith("[") else host
        return f"{scheme}://{shown}:{port}"


def _control_plane(
    supervisor: Supervisor, hub: Hub, keys: KeyRing, settings: Settings
) -> "AdminServer":
    from appliance.supervisor.admin.app import create_admin_apps  # noqa: PLC0415 - heavy
    from appliance.supervisor.admin_server import AdminServer  # noqa: PLC0415 - heavy

    tcp_app, unix_app = create_admin_apps(
        supervisor, hub, keys, settings.cors_origin, settings.allowed_host
    )
    return AdminServer(tcp_app, unix_app, tls_cert=settings.tls_cert, tls_key=settings.tls_key)


def _check_certificate(settings: Settings) -> None:
    """Find out before anything runs that a certificate and its key fit."""
    if settings.tls_cert is None:
        return
    try:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(settings.tls_cert, settings.tls_key)
    except OSError as error:  # ssl.SSLError is one
        raise InstanceError(f"cannot use {settings.tls_cert} with its key: {error}") from error


def _log_to_stderr(level: str) -> None:
    logging.basicConfig(
        level=level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    logging.getLogger("uvicorn").setLevel(logging.WARNING)


def _forward_line(name: str, line: str) -> None:
    """Show what a child wrote."""
    with contextlib.suppress(OSError):  # nobody reads our output any more
        sys.stderr.write(f"{name}: {line}\n")
        sys.stderr.flush()


def _say(text: str) -> None:
    """Print for the operator; a closed terminal does not end the appliance."""
    with contextlib.suppress(OSError):
        sys.stdout.write(text)
        sys.stdout.flush()


def _age_s() -> float:
    """Return how long this process has existed."""
    identity = identity_of(os.getpid())
    assert identity is not None
    started_s = identity.start_ticks / os.sysconf("SC_CLK_TCK")
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started_s
