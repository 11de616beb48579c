"""Who may pass: default deny, decided on the very path that the router matches.

Only the probes answer without a key. The unix socket's listener vouches for the local user.
"""

import hashlib
import hmac
import ipaddress
from collections.abc import Iterable
from datetime import UTC, datetime

from starlette.types import ASGIApp, Receive, Scope, Send

from appliance.control_link.messages import FleetState, KeyRecord
from appliance.gateway.fleet import Fleet
from appliance.gateway.host import host_name, is_same_origin
from appliance.gateway.openai.errors import ApiError
from appliance.gateway.request_context import context_of, header_values
from engine.clock import now_ns

OPEN_PATHS = frozenset({"/livez", "/readyz", "/startupz", "/health"})
OPEN_METHODS = frozenset({"GET", "HEAD"})
REQUIRED_SCOPE = "inference"
MAX_SECRET_BYTES = 4096
FIRST_STATE_TIMEOUT_S = 2.0


class AuthMiddleware:
    """Lets a request pass with a key of scope `inference`, or from the local user.

    Args:
        app: The application inside.
        fleet: Holds the keys; before its first state nobody passes.
        allowed_origins: Browser origins that may call without a key when none is required.
    """

    def __init__(self, app: ASGIApp, fleet: Fleet, allowed_origins: Iterable[str]) -> None:
        self._app = app
        self._fleet = fleet
        self._allowed_origins = frozenset(allowed_origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request or refuse it."""
        context = context_of(scope)
        if not is_open(scope):
            state = await self._fleet.known_state(FIRST_STATE_TIMEOUT_S)
            if state is None:
                raise ApiError("server_overloaded", "The server is starting.", retry_after_s=1)
            if not context.is_local:
                context.key = self._authenticate(scope, state)
        context.authenticated_ns = now_ns()
        await self._app(scope, receive, send)

    def _authenticate(self, scope: Scope, state: FleetState) -> KeyRecord | None:
        if not state.auth_required:
            self._refuse_foreign_pages(scope)
            return None
        key = find_key(bearer_secret(header_values(scope, b"authorization")), state.keys)
        if key is None:
            raise ApiError("invalid_api_key", "Missing or incorrect API key.")
        if key.scope != REQUIRED_SCOPE:
            message = f"This key has no scope '{REQUIRED_SCOPE}'."
            raise ApiError("insufficient_permissions", message)
        return key

    def _refuse_foreign_pages(self, scope: Scope) -> None:
        """Without keys, a web page must not reach us: not by its origin, not by rebound DNS."""
        host = header_values(scope, b"host")[0]
        if not _is_literal_or_local(host_name(host)):
            raise ApiError("host_not_allowed", "Without a key, this host name is not served.")
        for origin in header_values(scope, b"origin"):
            text = origin.decode("latin-1")
            if text not in self._allowed_origins and not is_same_origin(text, host):
                raise ApiError("origin_not_allowed", "Without a key, this origin is not served.")


def is_open(scope: Scope) -> bool:
    """Whether a request is a probe, which needs no key."""
    return scope["path"] in OPEN_PATHS and scope["method"] in OPEN_METHODS


def bearer_secret(values: list[bytes]) -> bytes | None:
    """Return the secret of a single `Authorization: Bearer` header, or None."""
    if len(values) != 1:
        return None
    scheme, _, secret = values[0].partition(b" ")
    secret = secret.strip()
    if scheme.lower() != b"bearer" or not 0 < len(secret) <= MAX_SECRET_BYTES:
        return None
    return secret


def find_key(secret: bytes | None, keys: Iterable[KeyRecord]) -> KeyRecord | None:
    """Return the key that `secret` opens, comparing with every one in constant time.

    An expired key opens nothing.
    """
    digest = hashlib.sha256(secret or b"").hexdigest().encode()
    found: KeyRecord | None = None
    for key in keys:
        if hmac.compare_digest(digest, key.sha256.encode()):
            found = key
    if secret is None or found is None or _is_expired(found):
        return None
    return found


def _is_expired(key: KeyRecord) -> bool:
    return key.expires_at is not None and key.expires_at <= datetime.now(UTC).timestamp()


def _is_literal_or_local(name: str) -> bool:
    if name == "localhost":
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
