"""The two adapter routes that tools made for vLLM call. They wait, and answer as vLLM does.

Source: https://docs.vllm.ai/en/latest/features/lora/
"""

import json

from fastapi import APIRouter, Request, Response
from pydantic import ConfigDict, Field

from appliance.supervisor.admin.access import API
from appliance.supervisor.admin.fleet_routes import caller_of
from appliance.supervisor.admin.ports import FleetControl, NotFoundError, RefusedError
from appliance.supervisor.admin.schemas import LoadAdapterBody, Operation, Schema

_DEADLINE_S = 600.0
_USER_INPUT = "InvalidUserInput"
_BAD_REQUEST = "BadRequestError"
_NOT_FOUND = "NotFoundError"
_MISSING = frozenset({"adapter_not_found", "model_not_found"})


class LoadLoraBody(Schema):
    """`POST /v1/load_lora_adapter`; fields that vLLM adds are ignored."""

    model_config = ConfigDict(extra="ignore")

    lora_name: str = Field("", max_length=256)
    lora_path: str = Field("", max_length=4096)
    load_inplace: bool = False
    base_model_name: str | None = None


class UnloadLoraBody(Schema):
    """`POST /v1/unload_lora_adapter`."""

    model_config = ConfigDict(extra="ignore")

    lora_name: str = Field("", max_length=256)


def adapter_alias_routes(fleet: FleetControl) -> APIRouter:
    """Return both routes."""
    router = APIRouter(tags=["vllm"])

    @router.post("/v1/load_lora_adapter", response_class=Response)
    async def load_lora_adapter(body: LoadLoraBody, request: Request) -> Response:
        """Load an adapter on all engines; `load_inplace` replaces one of the same name."""
        if not body.lora_name or not body.lora_path:
            return _error(400, _USER_INPUT, "lora_name and lora_path are both needed")
        is_there = any(row.name == body.lora_name for row in fleet.adapters())
        if is_there and not body.load_inplace:
            message = f"adapter '{body.lora_name}' is loaded already; load_inplace replaces it"
            return _error(400, _USER_INPUT, message)
        wanted = LoadAdapterBody(path=body.lora_path, model=body.base_model_name)
        try:
            operation = await fleet.load_adapter(body.lora_name, wanted, caller_of(request).actor)
        except RefusedError as error:
            status, kind = (404, _NOT_FOUND) if error.code in _MISSING else (400, _BAD_REQUEST)
            return _error(status, kind, str(error))
        success = f"Success: LoRA adapter '{body.lora_name}' added successfully."
        return await _ended(fleet, operation, success)

    @router.post("/v1/unload_lora_adapter", response_class=Response)
    async def unload_lora_adapter(body: UnloadLoraBody, request: Request) -> Response:
        """Take an adapter's name away from all engines."""
        if not body.lora_name:
            return _error(400, _USER_INPUT, "lora_name is needed")
        try:
            operation = fleet.unload_adapter(body.lora_name, caller_of(request).actor)
        except NotFoundError as error:
            return _error(404, _NOT_FOUND, str(error))
        success = f"Success: LoRA adapter '{body.lora_name}' removed successfully."
        return await _ended(fleet, operation, success)

    return router


async def _ended(fleet: FleetControl, begun: Operation, success: str) -> Response:
    operation = await fleet.operation(begun.id, _DEADLINE_S)
    match operation.state:
        case "done":
            answer = Response(success, media_type="text/plain")
        case "queued" | "running":
            text = f"{operation.kind} goes on; follow it at {API}/operations/{operation.id}"
            answer = _error(504, "GatewayTimeout", text)
        case "failed" | "canceled":
            answer = _error(400, _BAD_REQUEST, operation.error or operation.state)
    answer.headers["x-operation-id"] = operation.id
    answer.headers["deprecation"] = "true"
    answer.headers["link"] = f'<{API}/adapters/{operation.target}>; rel="successor-version"'
    return answer


def _error(status: int, kind: str, message: str) -> Response:
    error = {"message": message, "type": kind, "param": None, "code": status}
    return Response(json.dumps({"error": error}), status, media_type="application/json")
