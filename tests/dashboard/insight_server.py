"""The routes that explain, as a small real server speaks them."""

import json
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from appliance.supervisor.admin.schemas import (
    AuditCheck,
    ChangeTelemetry,
    Problem,
    StackDump,
    StartProfileBody,
)
from tests.dashboard.insight_samples import (
    a_flight,
    a_line,
    a_moment,
    a_profile,
    an_audit_entry,
    an_explanation,
    settings,
)
from tests.dashboard.samples import REQUEST_ID, an_event, an_operation

if TYPE_CHECKING:
    from tests.dashboard.server import AdminFake

PREFIX = "/admin/v1"
STACKS = 'Thread 4711 (active): "MainThread"\n    step (engine/core/loop.py:137)\n'


def body(model: BaseModel, status: int = 200) -> Response:
    return Response(model.model_dump_json(), status, media_type="application/json")


def items(rows: list[Any]) -> Response:
    return JSONResponse({"items": [row.model_dump(mode="json") for row in rows]})


class InsightFake:
    """What screens ask for; `problem` refuses all of it, as a server without the routes does."""

    def __init__(self, admin: "AdminFake") -> None:
        self._admin = admin
        self.problem: Problem | None = None
        self.explanation = an_explanation()
        self.moment = a_moment()
        self.settings = settings()
        self.events = [an_event(2, "e1 was killed"), an_event(1, "e0 is ready")]
        self.lines = [a_line(1), a_line(2, "drained", level="warning", process="e0")]
        self.entries = [an_audit_entry(2, status=403, actor="eve"), an_audit_entry(1)]
        self.check = AuditCheck(ok=True, entries=2)
        self.profiles = [a_profile()]
        self.flight = a_flight()
        self.live_flight = a_flight()

    def routes(self) -> list[Route]:
        table = {
            "/traces/{id}/explanation": self._explanation,
            "/moment": self._moment,
            "/telemetry": self._telemetry,
            "/events": self._events,
            "/logs": self._logs,
            "/audit": self._audit,
            "/audit/verify": self._verify,
            "/profiles": self._profiles,
            "/engines/{id}/flight": self._flight,
            "/engines/{id}/stacks": self._stacks,
        }
        return [
            Route(PREFIX + path, self._guarded(answer), methods=["GET", "POST", "PATCH"])
            for path, answer in table.items()
        ]

    def _guarded(self, answer: Any) -> Any:
        async def guarded(request: Request) -> Response:
            if self.problem is not None:
                return body(self.problem, self.problem.status)
            sent = await request.body()
            if request.method != "GET":
                path = request.url.path.removeprefix(PREFIX)
                called = (request.method, path, json.loads(sent) if sent else None)
                self._admin.calls.append(called)
            return await answer(request)

        return guarded

    async def _explanation(self, request: Request) -> Response:
        assert request.path_params["id"] == REQUEST_ID
        return body(self.explanation)

    async def _moment(self, request: Request) -> Response:
        self._admin.calls.append(("moment", "", dict(request.query_params)))
        return body(self.moment)

    async def _telemetry(self, request: Request) -> Response:
        if request.method == "PATCH":
            change = ChangeTelemetry.model_validate_json(await request.body())
            wanted = change.model_dump(exclude_none=True)
            self.settings = self.settings.model_copy(update=wanted)
        return body(self.settings)

    async def _events(self, _request: Request) -> Response:
        return items(self.events)

    async def _logs(self, request: Request) -> Response:
        query = request.query_params
        after = int(query.get("after", 0))
        wanted = query.get("contains", "")
        return items([row for row in self.lines if row.id > after and wanted in row.text])

    async def _audit(self, _request: Request) -> Response:
        return items(self.entries)

    async def _verify(self, _request: Request) -> Response:
        return body(self.check)

    async def _profiles(self, request: Request) -> Response:
        if request.method == "GET":
            return items(self.profiles)
        engine = StartProfileBody.model_validate_json(await request.body()).engine
        self._admin.last_kind = "profile"
        self.profiles.insert(0, a_profile("prof-2", engine=engine))
        running = an_operation("profile", state="running", ended_at=None, result=None)
        self._admin.publish("operation", running)
        return body(running, 202)

    async def _flight(self, request: Request) -> Response:
        epoch = request.query_params.get("epoch")
        return body(self.flight if epoch is None else self.live_flight)

    async def _stacks(self, request: Request) -> Response:
        engine = request.path_params["id"]
        return body(StackDump(engine=engine, pid=4711, tool="py-spy", text=STACKS))
