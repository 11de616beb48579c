"""One gateway process under supervision, restarted behind listening sockets that never close."""

import asyncio
import logging
import random
import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import msgspec

from appliance.control_link.gateway_config import GatewayConfig
from appliance.supervisor.desired_state import StateDatabase
from appliance.supervisor.launcher.launcher import Child, Launcher, ProcessSpec
from appliance.supervisor.restart import RestartPolicy
from appliance.supervisor.termination import HUNG, POLITE, describe_exit, terminate
from engine.clock import now_ns

logger = logging.getLogger(__name__)

GatewayState = Literal["starting", "ready", "stopped", "backoff"]

_NEVER_GIVES_UP = 1 << 30
"""The appliance is of no use without its data plane: gateways back off, but are always retried."""


@dataclass(frozen=True, slots=True)
class GatewayPlan:
    """What one gateway shall be."""

    config: GatewayConfig
    """Its epoch is replaced at each start."""
    module: str = "appliance.gateway"

    @property
    def name(self) -> str:
        """`gateway-0`, ..."""
        return self.config.name

    @property
    def inherited_fds(self) -> tuple[int, ...]:
        """The listening sockets."""
        unix = () if self.config.unix_fd is None else (self.config.unix_fd,)
        return (self.config.tcp_fd, *unix)


@dataclass(frozen=True, slots=True)
class GatewayHooks:
    """Whom a managed gateway tells what."""

    expect: Callable[[str, int], None]
    """(name, epoch): a new epoch is about to start; accept only it."""
    died: Callable[[str, int, str], None]
    """(name, epoch, reason): this epoch's process is gone."""
    changed: Callable[["ManagedGateway"], None]
    """Its state changed."""


class ManagedGateway:
    """Supervises one gateway; all methods belong to the event loop's thread."""

    def __init__(
        self, plan: GatewayPlan, launcher: Launcher, database: StateDatabase, hooks: GatewayHooks
    ) -> None:
        self.plan = plan
        self.state: GatewayState = "starting"
        self.epoch = 0
        self.starts = 0
        self.live_requests = 0
        self.child: Child | None = None
        self._launcher = launcher
        self._database = database
        self._hooks = hooks
        self._policy = RestartPolicy(random.random, max_deaths=_NEVER_GIVES_UP)
        self._stopping = asyncio.Event()

    @property
    def name(self) -> str:
        """`gateway-0`, ..."""
        return self.plan.name

    @property
    def restarts(self) -> int:
        """Starts after the first."""
        return max(0, self.starts - 1)

    async def run(self) -> None:
        """Keep a process running until `stop`."""
        while not self._stopping.is_set():
            ended = await self._run_once()
            if self._stopping.is_set():
                break
            delay_s = self._policy.died(now_ns() / 1e9)
            assert delay_s is not None, "its policy never gives up"
            logger.warning("%s died (%s), next start in %.1f s", self.name, ended, delay_s)
            self._change("backoff")
            await self._pause(delay_s)
        self._change("stopped")

    def greeted(self, epoch: int, pid: int) -> None:
        """Its hello came: it serves."""
        if epoch == self.epoch and self.child is not None and pid == self.child.pid:
            self._policy.ready(now_ns() / 1e9)
            self._policy.made_token()
            self._change("ready")

    def stop(self) -> None:
        """Let no successor start; a process that serves is asked over the control link.

        One that has not greeted yet cannot be asked, and holds no requests.
        """
        self._stopping.set()
        if self.state == "starting" and self.child is not None:
            self.child.signal(signal.SIGTERM)

    async def end(self) -> None:
        """End the process by signals, if it still runs, and start no other."""
        self._stopping.set()
        if self.child is not None:
            await terminate(self.child, POLITE)

    async def replace_hung(self) -> None:
        """End a process that does not answer; its successor starts after that."""
        if self.child is not None:
            logger.error("%s does not answer and is replaced", self.name)
            await terminate(self.child, HUNG)

    def kill(self) -> None:
        """End the process at once, for an impatient shutdown."""
        if self.child is not None:
            self.child.signal(9)

    async def _run_once(self) -> str:
        """Start one process and wait for its end; return how it ended."""
        self.epoch = self._database.next_epoch(self.name)
        self.starts += 1
        self.live_requests = 0
        self._hooks.expect(self.name, self.epoch)
        self._change("starting")
        config = msgspec.structs.replace(self.plan.config, epoch=self.epoch)
        fds = self.plan.inherited_fds
        spec = ProcessSpec(
            self.name, self.plan.module, msgspec.json.encode(config), fds, self.epoch
        )
        try:
            child = self.child = self._launcher.spawn(spec)
        except OSError as error:
            ended = f"could not start: {error}"
        else:
            ended = describe_exit(await child.wait())
            self.child = None
            child.close()
        self._hooks.died(self.name, self.epoch, ended)
        return ended

    async def _pause(self, delay_s: float) -> None:
        try:
            async with asyncio.timeout(delay_s):
                await self._stopping.wait()
        except TimeoutError:
            return

    def _change(self, state: GatewayState) -> None:
        if state != self.state or state == "starting":
            self.state = state
            self._hooks.changed(self)
