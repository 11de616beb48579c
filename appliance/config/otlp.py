"""Where spans are exported to and how: settings, and OpenTelemetry's own variables below them.

Variables for traces alone (`OTEL_EXPORTER_OTLP_TRACES_...`) win over general ones. As the
specification demands, a variable that cannot be understood is ignored with a warning.

Source: https://opentelemetry.io/docs/specs/otel/protocol/exporter/
"""

import logging
import re
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Literal
from urllib.parse import SplitResult, unquote, urlsplit

from appliance.config.errors import ConfigError

logger = logging.getLogger(__name__)

OtlpProtocol = Literal["http/protobuf", "grpc"]
PREFIX = "OTEL_EXPORTER_OTLP_"
TRACES_PREFIX = "OTEL_EXPORTER_OTLP_TRACES_"
TRACES_PATH = "/v1/traces"
GRPC_PORT = 4317
DEFAULT_TIMEOUT_S = 5.0
MAX_TEXT, MIN_SECRET = 200, 4
MIN_TIMEOUT_S, MAX_TIMEOUT_S = 0.1, 60.0
GRPC_HINT = "pip install 'quarterdeck[otlp-grpc]', or use http/protobuf (port 4318 as a rule)."
_HEADER_NAME, _HEADER_VALUE = re.compile(r"[A-Za-z0-9_.-]+"), re.compile(r"[ -~]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class OtlpOptions:
    """How to reach a collector."""

    protocol: OtlpProtocol
    url: str
    """Without credentials. HTTP: with the path that is posted to; gRPC: `host:port`."""
    tls: bool
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """Names in lower case."""
    gzip: bool = False
    timeout_s: float = DEFAULT_TIMEOUT_S
    certificate: Path | None = None
    """Authorities to trust, PEM; None: the system's."""
    client_certificate: Path | None = None
    client_key: Path | None = None

    @property
    def shown(self) -> str:
        """The endpoint as it may be shown: no credentials, no query."""
        return self.url.split("?")[0]

    def scrub(self, text: str) -> str:
        """Return a text of the collector's, printable, short, without the headers' values."""
        for _, value in self.headers:
            secret = value.rpartition(" ")[2]  # of `Bearer ...`
            if len(secret) >= MIN_SECRET:
                text = text.replace(secret, "(redacted)")
        printable = "".join(char if char.isprintable() else " " for char in text)
        return printable[:MAX_TEXT].strip()


def otlp_options(endpoint: str, protocol: OtlpProtocol, env: Mapping[str, str]) -> OtlpOptions:
    """Combine the settings with the environment.

    Args:
        endpoint: A base URL, unless it is what the variable for traces says: that has its path.
        protocol: Of the settings.
        env: Of the process. Headers are there alone: they are secrets.

    Raises:
        ConfigError: the endpoint cannot be used, or gRPC is not installed.
    """
    check_otlp(endpoint, protocol)
    parts = _split(endpoint)
    is_whole = endpoint == env.get(TRACES_PREFIX + "ENDPOINT")
    headers = _credentials(parts) | _headers(env)
    is_grpc = protocol == "grpc"
    return OtlpOptions(
        protocol=protocol,
        url=_grpc_target(parts) if is_grpc else _http_url(parts, is_whole=is_whole),
        tls=_is_secure(parts, env) if is_grpc else parts.scheme == "https",
        headers=tuple(headers.items()),
        gzip=_variable("COMPRESSION", env).lower() == "gzip",
        timeout_s=_timeout_s(env),
        certificate=_path("CERTIFICATE", env),
        client_certificate=_path("CLIENT_CERTIFICATE", env),
        client_key=_path("CLIENT_KEY", env),
    )


def check_otlp(endpoint: str | None, protocol: OtlpProtocol) -> None:
    """Refuse settings that cannot work.

    Raises:
        ConfigError: what `otlp_options` would refuse; it quotes no credentials.
    """
    if endpoint is None:
        return
    parts = _split(endpoint)
    schemes = {"http", "https", ""} if protocol == "grpc" else {"http", "https"}
    if parts.scheme not in schemes or not parts.hostname:
        raise ConfigError(f"otlp_endpoint must be http:// or https://, with a host: {_safe(parts)}")
    if protocol == "grpc" and find_spec("grpc") is None:
        raise ConfigError("otlp_protocol = 'grpc': the package grpcio is missing", hint=GRPC_HINT)


def _split(endpoint: str) -> SplitResult:
    """Split an endpoint; `host:4317` alone is one too."""
    try:
        parts = urlsplit(endpoint if "://" in endpoint else f"//{endpoint}")
        _ = parts.port  # raises when it is no number
    except ValueError:
        raise ConfigError("otlp_endpoint is not a URL") from None
    return parts


def _safe(parts: SplitResult) -> str:
    return f"{parts.scheme or '(no scheme)'}://{_host(parts) or '(no host)'}"


def _host(parts: SplitResult) -> str:
    return parts.netloc.rpartition("@")[2]


def _grpc_target(parts: SplitResult) -> str:
    """Return `host:port`; gRPC itself would take 443 always."""
    port = "" if parts.port or parts.scheme == "https" else f":{GRPC_PORT}"
    return _host(parts).rstrip(":") + port


def _http_url(parts: SplitResult, *, is_whole: bool) -> str:
    path = parts.path or "/"
    if not is_whole and not path.rstrip("/").endswith(TRACES_PATH):
        path = path.rstrip("/") + TRACES_PATH
    query = f"?{parts.query}" if parts.query else ""
    return f"{parts.scheme}://{_host(parts)}{path}{query}"


def _is_secure(parts: SplitResult, env: Mapping[str, str]) -> bool:
    if parts.scheme:
        return parts.scheme == "https"
    return _variable("INSECURE", env).lower() != "true"


def _credentials(parts: SplitResult) -> dict[str, str]:
    if parts.username is None:
        return {}
    pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return {"authorization": f"Basic {b64encode(pair.encode()).decode()}"}


def _headers(env: Mapping[str, str]) -> dict[str, str]:
    """Read `a=1,b=2`; values may be percent-encoded."""
    headers: dict[str, str] = {}
    for text in filter(None, map(str.strip, _variable("HEADERS", env).split(","))):
        name, equals, value = (part.strip() for part in unquote(text).partition("="))
        if equals and _HEADER_NAME.fullmatch(name) and _HEADER_VALUE.fullmatch(value):
            headers[name.lower()] = value
        else:
            logger.warning("a header in %sHEADERS is not name=value and is left out", PREFIX)
    return headers


def _timeout_s(env: Mapping[str, str]) -> float:
    """Read milliseconds. A value that can only be meant as seconds would break every export."""
    text = _variable("TIMEOUT", env)
    if not text:
        return DEFAULT_TIMEOUT_S
    try:
        timeout_s = float(text) / 1000
    except ValueError:
        timeout_s = 0.0
    if timeout_s < MIN_TIMEOUT_S:
        logger.warning("%sTIMEOUT is milliseconds, at least 100; it is ignored", PREFIX)
        return DEFAULT_TIMEOUT_S
    return min(timeout_s, MAX_TIMEOUT_S)


def _path(name: str, env: Mapping[str, str]) -> Path | None:
    """Return the file that a variable names. One that is not there leaves the system's trust."""
    text = _variable(name, env)
    if text and not Path(text).is_file():
        logger.warning("%s%s: there is no file %s; it is ignored", PREFIX, name, text)
        return None
    return Path(text) if text else None


def _variable(name: str, env: Mapping[str, str]) -> str:
    return (env.get(TRACES_PREFIX + name) or env.get(PREFIX + name) or "").strip()
