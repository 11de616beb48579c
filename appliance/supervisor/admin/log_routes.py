"""What the processes wrote."""

from typing import Annotated

from fastapi import APIRouter, Query

from appliance.supervisor.admin.access import API
from appliance.supervisor.admin.insight_schemas import Level
from appliance.supervisor.admin.ports import LogBook
from appliance.supervisor.admin.schemas import Collection, LogLine

MAX_LINES = 5000

Name = Annotated[str | None, Query(max_length=64)]
Part = Annotated[str | None, Query(max_length=256)]


def log_routes(logs: LogBook) -> APIRouter:
    """Return `/logs`."""
    router = APIRouter(prefix=API, tags=["logs"])

    @router.get("/logs")
    async def lines(
        process: Name = None,
        level: Level | None = None,
        after: Annotated[int | None, Query(ge=0)] = None,
        limit: Annotated[int, Query(ge=1, le=MAX_LINES)] = 100,
        contains: Part = None,
    ) -> Collection[LogLine]:
        """The newest lines, oldest first; with `after`, the first ones that follow that id.

        `level` is the least urgent one that is wanted; `contains` looks at texts, loggers,
        tracebacks and ids, in any case of letters.
        """
        found = logs.lines(
            process=process, min_level=level, after_id=after, limit=limit, contains=contains
        )
        return Collection(items=found)

    return router
