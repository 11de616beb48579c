"""Who may do what: one table of all routes. What is not in it does not exist, for anybody."""

import re
from dataclasses import dataclass
from typing import Final

from appliance.supervisor.admin.schemas import KeyRow, Scope, includes

OPEN: Final = None
"""No key needed."""

API: Final = "/admin/v1"

ROUTES: Final[dict[tuple[str, str], Scope | None]] = {
    ("GET", "/livez"): OPEN,
    ("GET", "/startupz"): OPEN,
    ("GET", "/readyz"): OPEN,
    ("GET", "/health"): OPEN,
    ("GET", "/metrics"): "viewer",
    ("GET", API): "viewer",
    ("GET", f"{API}/"): "viewer",
    ("GET", f"{API}/openapi.json"): "viewer",
    ("GET", f"{API}/whoami"): "viewer",
    ("GET", f"{API}/system"): "viewer",
    ("GET", f"{API}/engines"): "viewer",
    ("GET", f"{API}/engines/{{engine_id}}"): "viewer",
    ("POST", f"{API}/engines/{{engine_id}}/sleep"): "operator",
    ("POST", f"{API}/engines/{{engine_id}}/wake"): "operator",
    ("POST", f"{API}/engines/{{engine_id}}/restart"): "operator",
    ("POST", f"{API}/engines/{{engine_id}}/reset-prefix-cache"): "operator",
    ("GET", f"{API}/adapters"): "viewer",
    ("GET", f"{API}/adapters/{{name}}"): "viewer",
    ("PUT", f"{API}/adapters/{{name}}"): "operator",
    ("DELETE", f"{API}/adapters/{{name}}"): "operator",
    ("POST", f"{API}/adapters/{{name}}/pin"): "operator",
    ("POST", f"{API}/adapters/{{name}}/unpin"): "operator",
    ("GET", f"{API}/gateways"): "viewer",
    ("GET", f"{API}/operations"): "viewer",
    ("GET", f"{API}/operations/{{operation_id}}"): "viewer",
    ("GET", f"{API}/requests"): "viewer",
    ("GET", f"{API}/requests/{{request_id}}"): "viewer",
    ("DELETE", f"{API}/requests/{{request_id}}"): "operator",
    ("GET", f"{API}/traces"): "viewer",
    ("GET", f"{API}/traces/{{request_id}}"): "viewer",
    ("GET", f"{API}/traces/{{request_id}}/explanation"): "viewer",
    ("GET", f"{API}/traces/{{request_id}}/otlp"): "viewer",
    ("GET", f"{API}/traces/{{request_id}}/chrome"): "viewer",
    ("GET", f"{API}/spans/{{name}}"): "viewer",
    ("GET", f"{API}/moment"): "viewer",
    ("GET", f"{API}/slos"): "viewer",
    ("GET", f"{API}/telemetry"): "viewer",
    ("PATCH", f"{API}/telemetry"): "operator",
    ("GET", f"{API}/logs"): "viewer",
    ("GET", f"{API}/audit"): "admin",
    ("GET", f"{API}/audit/verify"): "admin",
    ("GET", f"{API}/profiles"): "viewer",
    ("POST", f"{API}/profiles"): "operator",
    ("GET", f"{API}/profiles/{{profile_id}}"): "viewer",
    ("POST", f"{API}/profiles/{{profile_id}}/stop"): "operator",
    ("DELETE", f"{API}/profiles/{{profile_id}}"): "operator",
    ("GET", f"{API}/profiles/{{profile_id}}/files/{{name}}"): "operator",
    ("GET", f"{API}/engines/{{engine_id}}/flight"): "viewer",
    ("POST", f"{API}/engines/{{engine_id}}/stacks"): "operator",
    ("GET", f"{API}/stats"): "viewer",
    ("GET", f"{API}/events"): "viewer",
    ("GET", f"{API}/events/stream"): "viewer",
    ("GET", f"{API}/keys"): "admin",
    ("POST", f"{API}/keys"): "admin",
    ("DELETE", f"{API}/keys/{{key_id}}"): "admin",
    ("POST", "/sleep"): "operator",
    ("POST", "/wake_up"): "operator",
    ("GET", "/is_sleeping"): "viewer",
    ("POST", "/reset_prefix_cache"): "operator",
    ("POST", "/start_profile"): "operator",
    ("POST", "/stop_profile"): "operator",
    ("POST", "/v1/load_lora_adapter"): "operator",
    ("POST", "/v1/unload_lora_adapter"): "operator",
}


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sent a request. `key` is None for the local user of the unix socket."""

    actor: str
    scope: Scope
    key: KeyRow | None = None


LOCAL: Final = Caller(actor="local", scope="admin")


@dataclass(frozen=True, slots=True)
class Match:
    """What the table says of one method and path."""

    methods: tuple[str, ...]
    """Allowed on this path; empty: there is no such path."""
    is_known: bool
    """Method and path are in the table."""
    scope: Scope | None
    template: str | None = None
    """The path as it stands in the table; None: there is no such path."""


def _compiled() -> list[tuple[re.Pattern[str], str, dict[str, Scope | None]]]:
    paths: dict[str, dict[str, Scope | None]] = {}
    for (method, template), scope in ROUTES.items():
        paths.setdefault(template, {})[method] = scope
    return [
        (re.compile(re.sub(r"\{\w+\}", "[^/\x00-\x20]+", template)), template, methods)
        for template, methods in paths.items()
    ]


_PATHS = _compiled()


def match(method: str, path: str) -> Match:
    """Look a request up. Literal paths stand before those with a parameter."""
    for pattern, template, methods in _PATHS:
        if pattern.fullmatch(path):
            scope = methods.get(method, "viewer")
            return Match(tuple(methods), method in methods, scope, template)
    return Match((), is_known=False, scope="viewer")


def may(caller: Caller, scope: Scope) -> bool:
    """Whether the caller's scope includes `scope`."""
    return includes(caller.scope, scope)
