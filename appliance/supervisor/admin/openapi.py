"""The OpenAPI document: FastAPI's own, plus what the guard does: keys, scopes, problems."""

from typing import Any, Final

from fastapi import FastAPI

from appliance.supervisor.admin.access import OPEN, ROUTES
from appliance.supervisor.admin.problems import MEDIA_TYPE
from appliance.supervisor.admin.schemas import Problem

_REF: Final = "#/components/schemas/{model}"
_KEY: Final = {
    "type": "http",
    "scheme": "bearer",
    "description": "A key; the unix socket needs none. Scopes: viewer < operator < admin.",
}
_NEVER_SENT: Final = ("HTTPValidationError", "ValidationError")
"""FastAPI's own shape of a 422; ours are problems."""


def openapi_document(app: FastAPI) -> dict[str, Any]:
    """Return the description of all routes, each with the scope that it needs."""
    document = app.openapi()  # the same object each time, so that all below must bear repetition
    components = document["components"]
    components["securitySchemes"] = {"key": _KEY}
    schemas = components["schemas"]
    for name in _NEVER_SENT:
        schemas.pop(name, None)
    schemas["Problem"] = Problem.model_json_schema(ref_template=_REF)
    for (method, path), scope in ROUTES.items():
        operation = document["paths"][path][method.lower()]
        operation["responses"].pop("422", None)
        if scope is OPEN:
            operation["security"] = []
        else:
            operation["security"] = [{"key": [scope]}]
            operation["responses"]["default"] = _problem_response()
    return document


def _problem_response() -> dict[str, Any]:
    schema = {"$ref": _REF.format(model="Problem")}
    return {
        "description": "A problem (RFC 9457).",
        "content": {MEDIA_TYPE.decode(): {"schema": schema}},
    }
