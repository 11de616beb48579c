"""Who changed what, and whether that record is whole."""

from typing import Annotated

from fastapi import APIRouter, Query

from appliance.supervisor.admin.access import API
from appliance.supervisor.admin.ports import AuditTrail
from appliance.supervisor.admin.schemas import AuditCheck, AuditEntry, Collection

MAX_ENTRIES = 1000


def audit_routes(audit: AuditTrail) -> APIRouter:
    """Return the routes below `/audit`."""
    router = APIRouter(prefix=API, tags=["audit"])

    @router.get("/audit")
    async def entries(
        limit: Annotated[int, Query(ge=1, le=MAX_ENTRIES)] = 100,
    ) -> Collection[AuditEntry]:
        """Every call that would have changed something, allowed or not, newest first."""
        return Collection(items=await audit.entries(limit))

    @router.get("/audit/verify")
    async def verify() -> AuditCheck:
        """Whether no entry was changed, removed or put in between."""
        return await audit.verify()

    return router
