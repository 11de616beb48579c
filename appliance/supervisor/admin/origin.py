"""Keeps browsers of other sites out: checks `Host`, `Origin` and `Sec-Fetch-Site`.

A page of any site can make a browser send requests to a loopback address, and DNS rebinding lets
it read the answers. The first shows in `Origin`, the second in a `Host` that is not ours.
"""

import re
from collections.abc import Sequence

from starlette.types import Scope

from appliance.config.network import is_address, is_loopback
from appliance.supervisor.admin.problems import ProblemError, problem

_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]{1,253})(?::\d{1,5})?")
_OWN_SITES = {b"same-origin", b"none"}


def header_values(scope: Scope, name: bytes) -> list[bytes]:
    """Return all values of a header; uvicorn has lowered the names."""
    return [value for key, value in scope["headers"] if key == name]


def checked_host(scope: Scope) -> str:
    """Return the host of the one, well-formed `Host` header.

    Raises:
        ProblemError: 400, there is none, more than one, or it could be read in two ways.
    """
    values = header_values(scope, b"host")
    match = _HOST.fullmatch(values[0].decode("latin-1")) if len(values) == 1 else None
    if match is None:
        raise ProblemError(problem(400, "malformed_host", "one well-formed Host header is needed"))
    return match[1]


class OriginPolicy:
    """Which hosts and origins are ours.

    Args:
        hosts: names beyond loopback; an IP address needs no entry, since nobody rebinds one.
        origins: sites whose pages may call, as in an `Origin` header.
    """

    def __init__(self, hosts: Sequence[str], origins: Sequence[str]) -> None:
        self._hosts = {host.lower() for host in hosts}
        self._origins = {origin.rstrip("/").lower().encode() for origin in origins}

    def check(self, scope: Scope) -> None:
        """Let a request pass.

        Raises:
            ProblemError: 400 for a malformed host, 403 for a foreign host or page.
        """
        host = checked_host(scope)
        if not (is_loopback(host) or is_address(host) or host.lower() in self._hosts):
            hint = "Address the control plane by IP, or add the name to allowed_host."
            raise ProblemError(problem(403, "host_not_allowed", "this host is not ours", hint))
        if self._is_foreign(scope):
            hint = "Allow the site with --cors-origin."
            raise ProblemError(problem(403, "cross_site", "a page of another site asked", hint))

    def allowed_origin(self, scope: Scope) -> bytes | None:
        """Return the `Origin` header if it is of a configured site."""
        values = header_values(scope, b"origin")
        known = len(values) == 1 and values[0].lower() in self._origins
        return values[0] if known else None

    def _is_foreign(self, scope: Scope) -> bool:
        if self.allowed_origin(scope) is not None:
            return False
        if any(site not in _OWN_SITES for site in header_values(scope, b"sec-fetch-site")):
            return True
        own = scope["scheme"].encode() + b"://" + header_values(scope, b"host")[0]
        return any(origin != own for origin in header_values(scope, b"origin"))


def preflight_headers(origin: bytes) -> list[tuple[bytes, bytes]]:
    """What a browser wants to hear before it calls."""
    return [
        *cors_headers(origin),
        (b"access-control-allow-methods", b"GET, POST, DELETE"),
        (b"access-control-allow-headers", b"authorization, content-type, last-event-id"),
        (b"access-control-max-age", b"600"),
    ]


def cors_headers(origin: bytes) -> list[tuple[bytes, bytes]]:
    """Let pages of this origin read the answer."""
    return [
        (b"access-control-allow-origin", origin),
        (b"access-control-expose-headers", b"location, retry-after, x-request-id"),
        (b"vary", b"origin"),
    ]
