"""What is recorded, kept and exported: begun from the configuration, changed while running."""

from dataclasses import asdict, dataclass, replace
from typing import Any

from appliance.supervisor.admin.schemas import ChangeTelemetry


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveTelemetry:
    """The switches of the telemetry; see `schemas.TelemetrySettings`."""

    recording: bool = True
    export: bool = False
    trace_ratio: float = 1.0
    slowest_per_minute: int = 5
    keep_errors: bool = True
    keep_aborts: bool = True
    keep_preempted: bool = True
    keep_slo_breaches: bool = True
    content: bool = False

    def changed(self, change: ChangeTelemetry) -> "LiveTelemetry":
        """Return these settings with what `change` names; what it leaves out stays."""
        return replace(self, **_named(change))

    def difference(self, before: "LiveTelemetry") -> dict[str, Any]:
        """Return the settings that are not as before, with their new values."""
        old = asdict(before)
        return {name: value for name, value in asdict(self).items() if value != old[name]}


def _named(change: ChangeTelemetry) -> dict[str, Any]:
    return change.model_dump(exclude_none=True)
