"""Sends records and accounts to the supervisor every 200 ms, when something changed.

An accepted request is announced within a few milliseconds: what the hub has heard of ends as
failed when this process is killed, instead of vanishing.
"""

import asyncio
from typing import Final

from appliance.control_link.gateway_end import GatewayLink
from appliance.control_link.messages import GatewayAccounts, GatewayStopped
from appliance.gateway.data_plane import DataPlane
from appliance.telemetry import names
from appliance.telemetry.accounts import Accounts
from appliance.telemetry.process_accounts import book_figures
from appliance.telemetry.records import LiveTokens
from engine.process_figures import FigureReader
from engine.shared_ticks import until_tick

INTERVAL_S: Final = 0.2
GATHER_S: Final = 0.005
"""Wait after an acceptance, so that a burst of them goes out as one message."""
MAX_SILENCE_S: Final = 1.0
"""Accounts go out at least this often, so that a lost snapshot is made up for."""


class Reporter:
    """The upward half of the control link."""

    def __init__(self, plane: DataPlane, link: GatewayLink, accounts: Accounts, name: str) -> None:
        self._plane = plane
        self._link = link
        self._accounts = accounts
        self._name = name
        self._last: tuple[int, tuple[LiveTokens, ...]] | None = None
        self._silent_s = 0.0
        self._figures = FigureReader()

    async def run(self) -> None:
        """Report until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._report_often())
            tasks.create_task(self._announce())

    async def _report_often(self) -> None:
        while True:
            await asyncio.sleep(until_tick(INTERVAL_S))
            self.report()

    async def _announce(self) -> None:
        announced = self._plane.records.announced
        while True:
            await announced.wait()
            await asyncio.sleep(GATHER_S)
            announced.clear()
            self.report()

    def report(self, *, is_final: bool = False) -> None:
        """Send what there is; `is_final` sends all of it."""
        sent = self._send_records()
        while is_final and sent:
            sent = self._send_records()
        live = self._live()
        state = (self._plane.ledger.version, live)
        self._silent_s += INTERVAL_S  # too much after an announcement: then it is never too late
        if is_final or state != self._last or self._silent_s >= MAX_SILENCE_S:
            self._send_accounts(live)
            self._last, self._silent_s = state, 0.0

    def stop(self) -> None:
        """Send the last words."""
        self.report(is_final=True)
        self._link.send(GatewayStopped(name=self._name))

    def _send_records(self) -> bool:
        batch = self._plane.records.take()
        if batch is None:
            return False
        if not self._link.send(batch):
            self._plane.records.lost(batch)
        return True

    def _live(self) -> tuple[LiveTokens, ...]:
        return tuple(
            live.journey.live
            for live in self._plane.live.values()
            if live.journey.context.was_accepted
        )

    def _send_accounts(self, live: tuple[LiveTokens, ...]) -> None:
        plane = self._plane
        plane.ledger.messages(
            plane.client.counts, self._link.counts, records_dropped=plane.records.dropped
        )
        book_figures(self._accounts, self._name, self._figures.read())
        self._accounts.set(names.QUEUE_DEPTH, (self._name, "records"), len(plane.records))
        self._link.send(GatewayAccounts(snapshot=self._accounts.snapshot(), live=live))
