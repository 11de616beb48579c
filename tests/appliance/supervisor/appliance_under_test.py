"""A supervisor with real child processes that are cheap: fake engines and fake gateways."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from appliance.config.settings import Settings
from appliance.control_link.gateway_config import GatewayConfig
from appliance.control_link.messages import Limits
from appliance.supervisor.admin.schemas import AdapterRow, EngineRow, SystemInfo
from appliance.supervisor.desired_state import StateDatabase, open_state
from appliance.supervisor.fleet import Fleet, FleetPlan
from appliance.supervisor.health import HealthLimits
from appliance.supervisor.key_store import KeyRing
from appliance.supervisor.launcher.local import LocalLauncher
from appliance.supervisor.listeners import bind_tcp
from appliance.supervisor.managed_engine import EnginePlan
from appliance.supervisor.managed_gateway import GatewayPlan
from appliance.supervisor.supervisor import Supervisor
from appliance.telemetry.hub import Hub, HubConfig
from engine.config import ClientEndpoint, EngineConfig
from engine.wire.addresses import input_address, output_address

PACKAGE = "tests.appliance.supervisor"
ROOT = Path(__file__).parents[3]
WAIT_S = 20.0


@dataclass
class Appliance:
    """What a test may look at."""

    supervisor: Supervisor
    hub: Hub
    keys: KeyRing
    state: StateDatabase
    port: int
    lines: list[tuple[str, str]]
    rows: asyncio.Queue[EngineRow]

    @property
    def fleet(self) -> Fleet:
        return self.supervisor._fleet

    def engine(self, engine_id: str = "e0") -> EngineRow:
        return next(row for row in self.supervisor.engines() if row.id == engine_id)

    async def until(self, holds: Callable[[EngineRow], bool], engine_id: str = "e0") -> EngineRow:
        """Wait for a value of an engine's row."""
        row = self.engine(engine_id)
        async with asyncio.timeout(WAIT_S):
            while not holds(row):
                row = await self.rows.get()
                if row.id != engine_id:
                    row = self.engine(engine_id)
        return row

    async def until_state(self, state: str, *, epoch: int | None = None) -> EngineRow:
        return await self.until(lambda r: r.state == state and epoch in (None, r.epoch))

    async def until_adapter(self, name: str, holds: Callable[[AdapterRow], bool]) -> AdapterRow:
        """Wait for a value of an adapter's row, as the event stream tells it."""
        stream = self.hub.subscribe(None)
        try:
            async with asyncio.timeout(WAIT_S):
                while True:
                    for row in self.supervisor.adapters():
                        if row.name == name and holds(row):
                            return row
                    await anext(stream)
        finally:
            await stream.aclose()

    async def until_gateway_ready(self, epoch: int) -> None:
        """Gateways have no row of change: ask."""
        async with asyncio.timeout(WAIT_S):
            while True:
                gateway = self.supervisor.gateways()[0]
                if gateway.state == "ready" and gateway.epoch == epoch:
                    return
                await asyncio.sleep(0.01)

    async def ask_gateway(self, line: str) -> str:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(f"{line}\n".encode())
        answer = await asyncio.wait_for(reader.read(), WAIT_S)
        writer.close()
        return answer.decode().strip()


@asynccontextmanager
async def appliance(
    run_dir: Path,
    *models: str,
    gateways: int = 0,
    health: HealthLimits | None = None,
    ready: bool = True,
    adapter_root: Path | None = None,
) -> AsyncIterator[Appliance]:
    """Run a supervisor with one fake engine per model; end it in order afterwards."""
    os.environ["PYTHONPATH"] = str(ROOT)
    state = open_state(run_dir / "state.sqlite3")
    keys = KeyRing.open(state.connection, Settings(api_key=["k"], admin_key=["a"]))
    hub = Hub(HubConfig(trace_db_path=run_dir / "traces.sqlite3"))
    lines: list[tuple[str, str]] = []
    launcher = LocalLauncher(lambda name, line: lines.append((name, line)))
    listening = bind_tcp("data plane", "127.0.0.1", 0, share=False)
    plan = _plan(run_dir, models, gateways, listening.fileno(), health or HealthLimits())
    if adapter_root is not None:
        plan = replace(plan, adapter_roots=(adapter_root,))
    supervisor = Supervisor(
        plan,
        state,
        keys,
        hub,
        launcher=launcher,
        system=_system(run_dir),
    )
    under_test = Appliance(
        supervisor, hub, keys, state, listening.getsockname()[1], lines, asyncio.Queue()
    )
    supervisor.on_progress = under_test.rows.put_nowait
    try:
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(supervisor.run())
            await asyncio.sleep(0)
            if ready:
                for index in range(len(models)):
                    await under_test.until(lambda row: row.state == "ready", f"e{index}")
            yield under_test
            supervisor.begin_drain(1.0)
            assert await supervisor.drained(WAIT_S)
            supervisor.stop()
            await running
    finally:
        listening.close()
        state.close()


def _plan(
    run_dir: Path, models: tuple[str, ...], gateways: int, tcp_fd: int, health: HealthLimits
) -> FleetPlan:
    client = ClientEndpoint(
        name="supervisor",
        input=input_address(run_dir, "supervisor"),
        output=output_address(run_dir, "supervisor"),
    )
    engines = [
        EnginePlan(
            EngineConfig(
                engine_id=f"e{index}", epoch=0, model=model, model_name="fake", clients=(client,)
            ),
            ("fake",),
            f"{PACKAGE}.fake_engine_process",
        )
        for index, model in enumerate(models)
    ]
    gateway_plans = [
        GatewayPlan(
            GatewayConfig(
                name=f"gateway-{index}", index=index, epoch=0, run_dir=str(run_dir), tcp_fd=tcp_fd
            ),
            f"{PACKAGE}.fake_gateway_process",
        )
        for index in range(gateways)
    ]
    return FleetPlan(
        engines=engines,
        gateways=gateway_plans,
        limits=Limits(max_queued=8, requests_per_minute=60, tokens_per_minute=1000, hold_s=5),
        health=health,
        on_asleep="wake",
        auth_required=True,
    )


def _system(run_dir: Path) -> SystemInfo:
    return SystemInfo(
        version="0",
        pid=os.getpid(),
        started_at=datetime.now(UTC),
        state_dir=str(run_dir),
        run_dir=str(run_dir),
        data_plane="",
        control_plane="",
        data_socket="",
        admin_socket="",
        on_asleep="wake",
    )
