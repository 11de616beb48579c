"""The calls of the admin API about profiles, stacks and flight recordings, for commands."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from appliance.cli.admin_client import AdminClient, segment
from appliance.supervisor.admin.schemas import (
    Collection,
    FlightReport,
    Operation,
    ProfileRow,
    StackDump,
)


class DiagnosticsClient:
    """Wraps an `AdminClient`; every method raises `CliError` with the exit code that fits."""

    def __init__(self, admin: AdminClient) -> None:
        self._admin = admin

    def profiles(self) -> list[ProfileRow]:
        """All profiles, newest first."""
        return self._admin.call("GET", "/profiles", Collection[ProfileRow]).items

    def profile(self, profile_id: str) -> ProfileRow:
        """One profile."""
        return self._admin.call("GET", f"/profiles/{segment(profile_id)}", ProfileRow)

    def start_profile(self, body: Mapping[str, Any]) -> Operation:
        """Begin a profile."""
        return self._admin.call("POST", "/profiles", Operation, json=body)

    def stop_profile(self, profile_id: str) -> Operation:
        """End a running profile."""
        return self._admin.call("POST", f"/profiles/{segment(profile_id)}/stop", Operation)

    def delete_profile(self, profile_id: str) -> ProfileRow:
        """Delete a profile and its files."""
        return self._admin.call("DELETE", f"/profiles/{segment(profile_id)}", ProfileRow)

    def download(self, profile_id: str, name: str, target: Path) -> None:
        """Fetch one file of a profile; `target` appears when it is complete."""
        path = f"/profiles/{segment(profile_id)}/files/{segment(name)}"
        self._admin.download(path, target)

    def flight(self, engine_id: str, steps: int, epoch: int | None) -> FlightReport:
        """The last steps of an engine."""
        params: dict[str, Any] = {"steps": steps} | ({} if epoch is None else {"epoch": epoch})
        path = f"/engines/{segment(engine_id)}/flight"
        return self._admin.call("GET", path, FlightReport, params=params)

    def stacks(self, engine_id: str) -> StackDump:
        """Where every thread of an engine is."""
        return self._admin.call("POST", f"/engines/{segment(engine_id)}/stacks", StackDump)
