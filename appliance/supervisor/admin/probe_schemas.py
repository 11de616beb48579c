"""What the open probes answer."""

from pydantic import Field

from appliance.supervisor.admin.schemas import EngineStateName, Progress, Schema


class ProbeEngine(Schema):
    """An engine in an open probe: nothing that a stranger should not read."""

    id: str
    state: EngineStateName
    phase: str | None = None
    progress: Progress | None = None


class Probe(Schema):
    """`/livez`, `/startupz`, `/readyz`, `/health`."""

    status: str
    engines: list[ProbeEngine] = Field(default_factory=list)
