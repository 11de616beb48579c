"""Takes what looks like a secret out of a text: the last line of defence, not the first.

Nothing hands a secret to a log on purpose. What a library, an exception or a child process quotes
by accident is found by its shape, or by its exact value where this process knows it.
"""

import re
from collections.abc import Iterable, Mapping
from urllib.parse import unquote

HIDDEN = "***"
MIN_VALUE_CHARS = 6
"""A shorter secret would take half of every line with it, and protects nothing."""

_HEADER_VARIABLE = re.compile(r"OTEL_EXPORTER_OTLP_(\w+_)?HEADERS")
_PASSWORD = re.compile(r"//[^/@:]*:([^/@]+)@")

_SHAPES: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"\bqd_[A-Za-z0-9_-]{6,}"), f"qd_{HIDDEN}"),
    (re.compile(r"\b(sk-|hf_|ghp_|glpat-|xox[a-z]-)[A-Za-z0-9_-]{12,}"), rf"\1{HIDDEN}"),
    (re.compile(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9+/=._~-]{6,}"), rf"\1 {HIDDEN}"),
    (
        re.compile(
            r"(?i)\b((?:proxy-)?authorization|x-api-key|api[-_]?key|passwo?r?d|passphrase"
            r"|client[-_]secret|secret|(?:access|auth|session|refresh)[-_]token|cookie"
            r"|otel_exporter_otlp(?:_traces)?_headers)"
            r"(['\"]?\s*[:=]\s*b?['\"]?)(?!\s)(?!\w*[ ]?\*\*\*)[^\s'\",;&})\]]+"
        ),
        rf"\1\2{HIDDEN}",
    ),
    (re.compile(r"(://)[^\s/@:]*:[^\s/@]+@"), rf"\1{HIDDEN}@"),
    (
        re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*-----|\Z)", re.DOTALL),
        f"{HIDDEN} (a private key)",
    ),
)


def known_secrets(environment: Mapping[str, str], urls: Iterable[str | None] = ()) -> list[str]:
    """Return the secrets for a collector: what is in OpenTelemetry's variables, and in addresses.

    Args:
        environment: Where `OTEL_EXPORTER_OTLP_HEADERS` and its kin stand.
        urls: Addresses that may hold a password.
    """
    listed = (text for name, text in environment.items() if _HEADER_VARIABLE.fullmatch(name))
    pairs = (pair for text in listed for pair in text.split(","))
    values = (unquote(pair.partition("=")[2]).strip() for pair in pairs)
    secrets = [secret for value in values for secret in (value, value.rpartition(" ")[2])]
    return [*secrets, *(found[1] for url in urls if url and (found := _PASSWORD.search(url)))]


class Redactor:
    """Replaces secrets in texts.

    Args:
        values: Secrets that this process knows.
    """

    def __init__(self, values: Iterable[str] = ()) -> None:
        self._values: set[str] = set()
        self._known: re.Pattern[str] | None = None
        self.learn(values)

    def learn(self, values: Iterable[str]) -> None:
        """Know more secrets by their value; too short ones are left out."""
        self._values |= {value for value in values if len(value) >= MIN_VALUE_CHARS}
        longest_first = sorted(self._values, key=len, reverse=True)
        self._known = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None

    def knows(self, value: str) -> bool:
        """Whether this very value is a secret, or looks like one."""
        return value in self._values or any(shape.search(value) for shape, _ in _SHAPES)

    def __call__(self, text: str) -> str:
        """Return the text without secrets."""
        if self._known is not None:
            text = self._known.sub(HIDDEN, text)
        for shape, replacement in _SHAPES:
            text = shape.sub(replacement, text)
        return text
