"""The telemetry's switches and its own accounts: what holds, what was lost, what is changed."""

import logging
import sqlite3
from collections.abc import Callable

from appliance.supervisor.admin.ports import RefusedError
from appliance.supervisor.admin.schemas import (
    ChangeTelemetry,
    ExportStatus,
    StageDrops,
    TelemetrySettings,
)
from appliance.telemetry import names
from appliance.telemetry.journal import Severity
from appliance.telemetry.live_settings import LiveTelemetry
from appliance.telemetry.names import Metric
from appliance.telemetry.parts import SUPERVISOR, HubConfig
from appliance.telemetry.trace_store import StoreFigures
from appliance.telemetry.unfailing import unfailing
from appliance.telemetry.views import Views
from engine.clock import now_ns

logger = logging.getLogger(__name__)


class LiveControl(Views):
    """Shows and changes what is recorded, kept and exported; counts what the supervisor does."""

    def __init__(self, config: HubConfig) -> None:
        super().__init__(config)
        self.on_recording: Callable[[bool, bool], None] | None = None
        """Called with (recording, content) when either changed: engines and gateways follow."""
        self._faults: set[str] = set()

    def count_fault(self, where: str, error: Exception) -> None:
        """A report could not be taken."""
        self.parts.own.inc(names.RECORDS_DROPPED, (SUPERVISOR, "hub_fault"))
        if where not in self._faults:
            self._faults.add(where)
            text = "the telemetry hub failed in %s; further failures are only counted"
            logger.error(text, where, exc_info=error)

    @unfailing
    def count(self, metric: Metric, labels: tuple[str, ...] = (), by: float = 1) -> None:
        """Add to one of the supervisor's own counters; label values come from closed sets."""
        self.parts.own.inc(metric, labels, by)

    @unfailing
    def journal(self, kind: str, level: Severity, subject: str, text: str) -> None:
        """Enter an event into the journal and the event stream."""
        event = self.parts.journal.add(kind, level, subject, text)
        self.parts.store.add_event(event)
        self.parts.recoveries.event(kind, subject, text, now_ns())
        self.stream.publish("event", event.model_dump_json())

    @property
    def settings(self) -> LiveTelemetry:
        """What holds now."""
        return self.parts.settings

    async def telemetry(self) -> TelemetrySettings:
        """What is recorded and exported, and what was lost."""
        parts, settings = self.parts, self.parts.settings
        figures = await self._stored()
        return TelemetrySettings(
            recording=settings.recording,
            export=settings.export,
            trace_ratio=settings.trace_ratio,
            slowest_per_minute=settings.slowest_per_minute,
            keep_errors=settings.keep_errors,
            keep_aborts=settings.keep_aborts,
            keep_preempted=settings.keep_preempted,
            keep_slo_breaches=settings.keep_slo_breaches,
            content=settings.content,
            collector=self._collector(),
            drops=self._drops(),
            stored_spans=figures and figures.facts,
            stored_bytes=figures and figures.used_bytes,
            oldest_at=parts.clock.from_unix(figures.oldest_ns)
            if figures and figures.oldest_ns
            else None,
        )

    async def change_telemetry(self, change: ChangeTelemetry, actor: str) -> TelemetrySettings:
        """Change it while running; what is left out stays.

        Raises:
            RefusedError: `no_collector`, export was asked for and no endpoint is configured.
        """
        if change.export and self.parts.export is None:
            hint = "Start with --otlp-endpoint URL, or set otlp_endpoint."
            raise RefusedError("no_collector", "there is no collector to export to", hint)
        self.apply_telemetry(self.parts.settings.changed(change), actor)
        return await self.telemetry()

    def apply_telemetry(self, settings: LiveTelemetry, actor: str) -> None:
        """Work by these settings from now on; an entry of the journal says what changed."""
        before = self.parts.settings
        difference = settings.difference(before)
        if not difference:
            return
        self.parts.apply(settings)
        if self.on_recording is not None and difference.keys() & {"recording", "content"}:
            self.on_recording(settings.recording, settings.content)
        told = ", ".join(f"{name}={value}" for name, value in difference.items())
        self.journal("telemetry.changed", "info", "telemetry", f"{told} by {actor}")

    async def _stored(self) -> StoreFigures | None:
        """Return how much is stored; None: the file cannot be read now."""
        try:
            return await self.parts.store.figures()
        except sqlite3.Error:
            return None

    def _collector(self) -> ExportStatus | None:
        export = self.parts.export
        return None if export is None else export.status()

    def _drops(self) -> list[StageDrops]:
        rows = self.parts.totals().values.get(names.RECORDS_DROPPED.name, {})
        return [
            StageDrops(process=process, stage=stage, dropped=int(dropped))
            for (process, stage), dropped in sorted(rows.items())
        ]
