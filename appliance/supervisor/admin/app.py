"""Puts the control plane together: the same routes behind two gates."""

from collections.abc import Sequence
from importlib.metadata import version

from fastapi import FastAPI
from starlette.types import ASGIApp

from appliance.supervisor.admin import errors
from appliance.supervisor.admin.adapter_aliases import adapter_alias_routes
from appliance.supervisor.admin.adapter_routes import adapter_routes
from appliance.supervisor.admin.aliases import alias_routes
from appliance.supervisor.admin.audit_routes import audit_routes
from appliance.supervisor.admin.diagnostic_routes import (
    diagnostic_routes,
    profile_alias_routes,
    profile_routes,
)
from appliance.supervisor.admin.fleet_routes import engine_routes, operation_routes
from appliance.supervisor.admin.guard import Guard
from appliance.supervisor.admin.log_routes import log_routes
from appliance.supervisor.admin.origin import OriginPolicy
from appliance.supervisor.admin.ports import FleetControl, Insight, KeyStore, TelemetryView
from appliance.supervisor.admin.probes import probe_routes
from appliance.supervisor.admin.system_routes import key_routes, system_routes
from appliance.supervisor.admin.telemetry_routes import request_routes, stats_routes


def create_routes(
    fleet: FleetControl, telemetry: TelemetryView, keys: KeyStore, insight: Insight
) -> FastAPI:
    """Return the bare routes, without a gate. Nothing may serve them as they are."""
    app = FastAPI(
        title="Quarterdeck control plane",
        version=version("quarterdeck"),
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
        telemetry={  # ours is the hub's; FastAPI's own would add a second set of spans
            "tracing": False,
            "metrics": False,
            "logs": False,
            "operation_spans": False,
            "auto_configure": False,
        },
    )
    errors.install(app)
    for router in (
        probe_routes(fleet),
        system_routes(app, fleet),
        engine_routes(fleet),
        adapter_routes(fleet),
        operation_routes(fleet),
        request_routes(telemetry),
        stats_routes(telemetry),
        key_routes(keys),
        log_routes(insight.logs),
        audit_routes(insight.audit),
        diagnostic_routes(insight.diagnostics),
        profile_routes(insight.diagnostics, fleet),
        profile_alias_routes(insight.diagnostics, fleet),
        alias_routes(fleet),
        adapter_alias_routes(fleet),
    ):
        app.include_router(router)
    return app


def create_admin_apps(
    fleet: FleetControl,
    telemetry: TelemetryView,
    keys: KeyStore,
    insight: Insight,
    cors_origins: Sequence[str] = (),
    allowed_hosts: Sequence[str] = (),
) -> tuple[ASGIApp, ASGIApp]:
    """Return the application for the TCP listener and the one for the unix socket.

    The first needs a key of the right scope. The second trusts everybody as `local` with the scope
    `admin`: whoever can open the socket (mode 0600) is that user. Never swap the two, and run
    neither with proxy headers.

    Args:
        fleet: the supervisor.
        telemetry: the hub.
        keys: opens the first.
        insight: logs, audit and diagnostics.
        cors_origins: sites whose pages may call the first.
        allowed_hosts: names under which the first may be addressed, beyond loopback and IPs.
    """
    routes = create_routes(fleet, telemetry, keys, insight)
    origins = OriginPolicy(allowed_hosts, cors_origins)
    tcp = Guard(routes, keys, origins, insight)
    return tcp, Guard(routes, None, origins, insight)
