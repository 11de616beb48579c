"""A small control plane and data plane on unix sockets that speak the admin schemas."""

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import uvicorn
from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from appliance.supervisor.admin.schemas import (
    AbortAnswer,
    LoadAdapterBody,
    Problem,
    SleepBody,
    SystemInfo,
    WhoAmI,
)
from tests.dashboard.insight_server import InsightFake
from tests.dashboard.samples import (
    AT,
    REQUEST_ID,
    a_snapshot,
    a_trace,
    an_adapter,
    an_engine,
    an_operation,
)

END = object()


def body(model: BaseModel, status: int = 200) -> Response:
    return Response(model.model_dump_json(), status, media_type="application/json")


def problem(status: int, code: str, **changes: Any) -> Response:
    text = Problem(title=code, status=status, code=code, **changes).model_dump_json()
    return Response(text, status, media_type="application/problem+json")


class AdminFake:
    """Engines and requests that verbs change, and an event stream that can be cut."""

    def __init__(self, run_dir: Path) -> None:
        self.socket_path = str(run_dir / "admin.sock")
        self.data_path = str(run_dir / "data.sock")
        self.snapshot = a_snapshot()
        self.trace = a_trace()
        self.calls: list[tuple[str, str, Any]] = []
        self.resumed_from: list[str | None] = []
        self.refusal: Response | None = None
        self.whoami = WhoAmI(actor="local", scope="admin", transport="unix")
        self.adapter_roots = ["/srv/adapters"]
        self.insight = InsightFake(self)
        self.last_kind = "sleep"
        self.next_id = 100
        self.is_closing = False
        self._readers: list[asyncio.Queue[Any]] = []

    def publish(self, name: str, model: BaseModel) -> None:
        self.next_id += 1
        text = f"id: {self.next_id}\nevent: {name}\ndata: {model.model_dump_json()}\n\n"
        self.send(text)

    def send(self, text: str) -> None:
        for reader in self._readers:
            reader.put_nowait(text)

    def cut(self) -> None:
        """End all event streams."""
        for reader in self._readers:
            reader.put_nowait(END)

    def app(self) -> Starlette:
        prefix = "/admin/v1"
        return Starlette(
            routes=[
                Route(f"{prefix}/events/stream", self._stream),
                *self.insight.routes(),
                Route(f"{prefix}/system", self._system),
                Route(f"{prefix}/whoami", self._whoami),
                Route(f"{prefix}/requests", self._requests),
                Route(f"{prefix}/traces/{{id}}", self._trace),
                Route(f"{prefix}/operations/{{id}}", self._operation),
                Route(f"{prefix}/engines/{{id}}/{{verb}}", self._verb, methods=["POST"]),
                Route(f"{prefix}/adapters/{{id}}", self._adapter, methods=["PUT", "DELETE"]),
                Route(f"{prefix}/adapters/{{id}}/{{verb}}", self._adapter, methods=["POST"]),
                Route(f"{prefix}/requests/{{id}}", self._abort, methods=["DELETE"]),
                Route("/v1/chat/completions", self._chat, methods=["POST"]),
            ]
        )

    async def _stream(self, request: Request) -> Response:
        last_id = request.headers.get("last-event-id")
        if self.is_closing:
            return problem(503, "closing")
        self.resumed_from.append(last_id)
        if self.refusal is not None:
            return self.refusal
        return StreamingResponse(self._events(last_id), media_type="text/event-stream")

    async def _events(self, last_id: str | None) -> AsyncIterator[str]:
        reader: asyncio.Queue[Any] = asyncio.Queue()
        self._readers.append(reader)
        try:
            if last_id is None:
                snapshot = self.snapshot.model_dump_json()
                yield f"id: {self.next_id}\nevent: snapshot\ndata: {snapshot}\n\n"
            else:
                yield ": resumed\n\n"
            while (text := await reader.get()) is not END:
                yield text
        finally:
            self._readers.remove(reader)

    async def _system(self, _request: Request) -> Response:
        return body(
            SystemInfo(
                version="0.1.0",
                pid=1,
                started_at=AT,
                state_dir="",
                run_dir="",
                data_plane="http://127.0.0.1:1",
                control_plane="http://here:8001",
                data_socket=self.data_path,
                admin_socket=self.socket_path,
                on_asleep="wake",
                adapter_roots=self.adapter_roots,
            )
        )

    async def _whoami(self, _request: Request) -> Response:
        return body(self.whoami)

    async def _requests(self, _request: Request) -> Response:
        rows = [row.model_dump(mode="json") for row in self.snapshot.requests]
        return JSONResponse({"items": rows})

    async def _trace(self, request: Request) -> Response:
        if request.path_params["id"] != self.trace.request.id:
            return problem(404, "not_found", detail="no such trace")
        return body(self.trace)

    async def _operation(self, request: Request) -> Response:
        self.calls.append(("operation", request.path_params["id"], dict(request.query_params)))
        return body(an_operation(self.last_kind))

    async def _verb(self, request: Request) -> Response:
        verb, engine_id = request.path_params["verb"], request.path_params["id"]
        sent = await request.body()
        self.calls.append((verb, engine_id, json.loads(sent) if sent else None))
        if self.refusal is not None:
            return self.refusal
        if verb == "sleep":
            SleepBody.model_validate_json(sent)
            self.publish("engine", an_engine(engine_id, state="asleep", sleep_level=1))
        self.last_kind = verb
        running = an_operation(verb, state="running", ended_at=None, result=None)
        return body(running, 202)

    async def _adapter(self, request: Request) -> Response:
        name, sent = request.path_params["id"], await request.body()
        words = {"PUT": "load", "DELETE": "unload"}
        verb = request.path_params.get("verb") or words[request.method]
        self.calls.append((verb, name, json.loads(sent) if sent else None))
        if self.refusal is not None:
            return self.refusal
        if verb == "load":
            path = LoadAdapterBody.model_validate_json(sent).path
            self.publish("adapter", an_adapter(name, path=path))
        elif verb == "unload":
            self.publish("adapter", an_adapter(name, state="removed"))
        else:
            self.publish("adapter", an_adapter(name, pinned=verb == "pin"))
        self.last_kind = f"lora.{verb}"
        result = {"rank": 16, "num_bytes": 1_800_000} if verb == "load" else {}
        return body(an_operation(self.last_kind, target=name, result=result), 202)

    async def _abort(self, request: Request) -> Response:
        self.calls.append(("abort", request.path_params["id"], None))
        answer = AbortAnswer(id=request.path_params["id"], state="aborted", completion_tokens=7)
        return body(answer)

    async def _chat(self, request: Request) -> Response:
        self.calls.append(("chat", "", await request.json()))
        choice = {"index": 0, "message": {"role": "assistant", "content": "hull, mast, keel"}}
        answer = {"id": "chatcmpl-0123456789abcdef01234567", "choices": [choice]}
        return JSONResponse(answer, headers={"x-request-id": REQUEST_ID})


@contextlib.asynccontextmanager
async def serving(fake: AdminFake, *paths: str) -> AsyncIterator[None]:
    """Serve `fake` on the sockets until the block ends."""
    config = uvicorn.Config(
        fake.app(), lifespan="off", ws="none", log_level="error", timeout_graceful_shutdown=1
    )
    server = uvicorn.Server(config)
    fake.is_closing = False
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(_listener(path)) for path in paths or (fake.socket_path,)]
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(server.serve(sockets))
            while not server.started:
                await asyncio.sleep(0.01)
            try:
                yield
            finally:
                fake.is_closing = True
                fake.cut()
                server.should_exit = True


def _listener(path: str) -> socket.socket:
    Path(path).unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(path)
    return listener
