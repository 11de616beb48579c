"""Posts batches to a collector over one kept connection.

Source: https://opentelemetry.io/docs/specs/otlp/#otlphttp-response
"""

import gzip
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import urllib3
from urllib3 import exceptions

from appliance.config.otlp import OtlpOptions
from appliance.telemetry.export.sender import Refused, Taken, taken_bytes

MAX_ANSWER_BYTES: Final = 65536
GZIP_LEVEL: Final = 1
PROTOBUF: Final = "application/x-protobuf"
AGAIN: Final = (
    HTTPStatus.TOO_MANY_REQUESTS,
    HTTPStatus.BAD_GATEWAY,
    HTTPStatus.SERVICE_UNAVAILABLE,
    HTTPStatus.GATEWAY_TIMEOUT,
)


class HttpSender:
    """Sends over OTLP/HTTP; see `sender.Sender`. Proxies are those of the environment."""

    def __init__(self, options: OtlpOptions) -> None:
        self._options = options
        self._headers = {"user-agent": "quarterdeck", **dict(options.headers)}
        self._headers["content-type"] = PROTOBUF
        if options.gzip:
            self._headers["content-encoding"] = "gzip"
        self._pool = _pool(options)

    def send(self, request: bytes) -> Taken | Refused:
        """Post a batch. A kept connection that was closed meanwhile is made anew once."""
        body = gzip.compress(request, GZIP_LEVEL) if self._options.gzip else request
        try:
            try:
                return self._post(body)
            except exceptions.ProtocolError:
                return self._post(body)
        except (exceptions.HTTPError, OSError) as error:
            return Refused(self._reason(error))

    def close(self) -> None:
        """Close the connection once it is idle."""
        self._pool.clear()

    def _post(self, body: bytes) -> Taken | Refused:
        response = self._pool.request(
            "POST",
            self._options.url,
            body=body,
            headers=self._headers,
            preload_content=False,
            redirect=False,
        )
        try:
            content = response.read(MAX_ANSWER_BYTES)
            if response.read(1):
                response.close()  # more than an answer has: do not keep the connection
        finally:
            response.release_conn()
        if HTTPStatus.OK <= response.status < HTTPStatus.MULTIPLE_CHOICES:
            return self._taken(taken_bytes(content))
        after_s = _after_s(response.headers.get("retry-after"))
        return Refused(
            self._answer(response.status, response.headers.get("content-type", ""), content),
            is_final=response.status not in AGAIN,
            after_s=after_s,
        )

    def _taken(self, answer: Taken) -> Taken:
        reason = answer.reason and self._options.scrub(answer.reason)
        return Taken(answer.rejected, reason)

    def _answer(self, status: int, content_type: str, content: bytes) -> str:
        text = f"it answered {status}"
        if status in HTTPStatus._value2member_map_:
            text = f"{text} {HTTPStatus(status).phrase}"
        if content_type.startswith("text/plain"):
            said = self._options.scrub(content.decode(errors="replace"))
            text = f"{text}: {said}" if said else text
        return text

    def _reason(self, error: Exception) -> str:
        """Say what went wrong; the exceptions' own texts quote the URL and more."""
        timeout = f"within {self._options.timeout_s:g} s"
        match error:
            case exceptions.NameResolutionError():
                reason = "its name cannot be resolved"
            case exceptions.NewConnectionError():
                cause = error.__cause__ or error.__context__
                said = cause.strerror if isinstance(cause, OSError) else None
                reason = f"no connection: {said or 'failed'}"
            case exceptions.ConnectTimeoutError():
                reason = f"no connection {timeout}"
            case exceptions.TimeoutError():
                reason = f"no answer {timeout}"
            case exceptions.SSLError():
                reason = self._options.scrub(f"no TLS: {error}")
            case exceptions.ProtocolError():
                reason = "it cut the connection"
            case _:
                reason = f"failed: {type(error).__name__}"
        return reason


def _pool(options: OtlpOptions) -> urllib3.PoolManager:
    parts = urlsplit(options.url)
    proxy = getproxies().get(parts.scheme)
    if parts.hostname is None or proxy_bypass(parts.hostname):
        proxy = None
    settings: dict[str, Any] = {
        "num_pools": 1,
        "maxsize": 1,
        "retries": False,
        "timeout": urllib3.Timeout(options.timeout_s),
    }
    for name, path in (
        ("ca_certs", options.certificate),
        ("cert_file", options.client_certificate),
        ("key_file", options.client_key),
    ):
        if path is not None:
            settings[name] = str(path)
    return urllib3.ProxyManager(proxy, **settings) if proxy else urllib3.PoolManager(**settings)


def _after_s(text: str | None) -> float | None:
    """Read Retry-After: seconds, or a date."""
    if text is None:
        return None
    if text.strip().isdigit():
        return float(text)
    try:
        at = parsedate_to_datetime(text)
    except ValueError:
        return None
    return max(0.0, (at.astimezone(UTC) - datetime.now(UTC)).total_seconds())
