"""One running instance: its files, its keys, its supervisor and its control plane, start to end."""

import asyncio
import contextlib
import gc
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

import uvloop

from appliance.config.key_files import BadKeyError
from appliance.config.paths import state_dir as find_state_dir
from appliance.config.settings import Settings
from appliance.model_store.packs import ModelStoreError
from appliance.model_store.resolve import ResolvedModel
from appliance.supervisor.admin.ports import Insight
from appliance.supervisor.admin.schemas import EngineRow, SystemInfo
from appliance.supervisor.audit_file import AUDIT_FILE
from appliance.supervisor.audit_log import AuditLog
from appliance.supervisor.desired_state import (
    STATE_FILE,
    NewerStateError,
    StateDatabase,
    open_state,
)
from appliance.supervisor.key_store import KeyRing
from appliance.supervisor.launcher.identity import identity_of
from appliance.supervisor.launcher.local import LocalLauncher
from appliance.supervisor.listeners import Listeners, bind_unix
from appliance.supervisor.log_book import LogBook
from appliance.supervisor.log_file import LOG_DIRECTORY
from appliance.supervisor.plans import plan_fleet, resolve_models
from appliance.supervisor.run_directory import InstanceError, RunDirectory, StateLock
from appliance.supervisor.scheduling import give_way
from appliance.supervisor.shutdown import Shutdown
from appliance.supervisor.start_card import StartFacts, start_card
from appliance.supervisor.start_progress import StartProgress
from appliance.supervisor.supervisor import Supervisor
from appliance.telemetry import names
from appliance.telemetry.hub import Hub, HubConfig
from appliance.telemetry.journal import Severity
from appliance.telemetry.parts import SUPERVISOR
from engine.core_dumps import forbid_core_dumps
from engine.log_lines import configure_logging, redact
from engine.redaction import known_secrets
from engine.wire.addresses import check_run_dir

if TYPE_CHECKING:
    from appliance.supervisor.admin_server import AdminServer

logger = logging.getLogger(__name__)

TRACES_FILE = "traces.sqlite3"
SLO_FILE = "slo.db"
FAILED = 1
USAGE = 2
"""The model that was asked for is none."""

_REFUSALS = (BadKeyError, ModelStoreError, NewerStateError, InstanceError)
"""What the operator can put right; told in one line, without a traceback."""


def run_instance(settings: Settings, listeners: Listeners, executable: Path | None) -> int:
    """Run on sockets that listen already; return the exit code."""
    forbid_core_dumps()
    _log_to_stderr(settings)
    redact.learn(known_secrets(os.environ, [settings.otlp_endpoint]))
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
                stack.callback(_log_to_stderr, settings)
                stack.callback(instance.close)
            instance.introduce(executable)
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                return runner.run(instance.run())
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
        self._children_policy = give_way()
        self._logs = LogBook(directory / LOG_DIRECTORY, settings.log_format)
        self._logs.handle_own(SUPERVISOR, None, settings.log_level)
        self._audit = AuditLog(directory / AUDIT_FILE, directory / STATE_FILE)
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
            self._count_by(hub)
            launcher = LocalLauncher(
                self._logs.take, self._run.note_child, self._logs.started, self._children_policy
            )
            supervisor = Supervisor(
                self._plan, self._state, self._keys, hub, launcher=launcher, system=self._system()
            )
            supervisor.on_progress = lambda row: self._show(supervisor, row)
            async with asyncio.TaskGroup() as tasks:
                ending = tasks.create_task(shutdown.run(supervisor))
                books = [tasks.create_task(book.run()) for book in (self._logs, self._audit)]
                tasks.create_task(self._serve_control_plane(supervisor, hub))
                await supervisor.run()
                for task in (ending, *books):
                    task.cancel()
        return 0

    def close(self) -> None:
        """Write the last lines of the logs."""
        self._audit.close()
        self._logs.close()

    def _count_by(self, hub: Hub) -> None:
        """Let the hub count what the logs take and lose."""
        self._logs.on_lines = lambda process, level, lines: hub.count(
            names.LOG_LINES, (process, level), lines
        )
        self._logs.on_lost = lambda lines: hub.count(
            names.RECORDS_DROPPED, (SUPERVISOR, "log"), lines
        )
        self._audit.on_entries = lambda outcome, entries: hub.count(
            names.AUDIT_ENTRIES, (outcome,), entries
        )
        self._audit.on_failing = lambda fails: hub.journal(*_audit_news(fails=fails))

    def _insight(self, supervisor: Supervisor, hub: Hub) -> Insight:
        return Insight(
            logs=self._logs,
            audit=self._audit,
            diagnostics=supervisor.diagnostics,
            count_answer=lambda route, status: hub.count(
                names.ADMIN_RESPONSES, (route, str(status))
            ),
        )

    async def _serve_control_plane(self, supervisor: Supervisor, hub: Hub) -> None:
        """Import the web framework only now, beside the loop: the children start meanwhile."""
        server = await asyncio.to_thread(
            _control_plane,
            supervisor,
            hub,
            self._keys,
            self._settings,
            self._insight(supervisor, hub),
        )
        gc.freeze()  # what was imported stays: collections need not look at it, and are short
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
            otlp_protocol=settings.otlp_protocol,
            trace_ratio=settings.trace_ratio,
            slowest_per_minute=settings.trace_slowest_per_minute,
            content=settings.trace_content,
            version=version("quarterdeck"),
            instance=self._run.path.name,
            slo=settings.slo,
            slo_db_path=self._directory / SLO_FILE,
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
    supervisor: Supervisor, hub: Hub, keys: KeyRing, settings: Settings, insight: Insight
) -> "AdminServer":
    from appliance.supervisor.admin.app import create_admin_apps  # noqa: PLC0415 - heavy
    from appliance.supervisor.admin_server import AdminServer  # noqa: PLC0415 - heavy

    tcp_app, unix_app = create_admin_apps(
        supervisor, hub, keys, insight, settings.cors_origin, settings.allowed_host
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


def _log_to_stderr(settings: Settings) -> None:
    """Log without the book: before it is open, and after it is closed."""
    configure_logging(SUPERVISOR, None, settings.log_level, settings.log_format)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)


def _audit_news(*, fails: bool) -> tuple[str, Severity, str, str]:
    """Return the journal's event when audit entries begin to be lost, and when that is over."""
    if fails:
        return ("audit.lost", "error", SUPERVISOR, "audit entries cannot be written; calls go on")
    return ("audit.works", "info", SUPERVISOR, "audit entries are written again")


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
