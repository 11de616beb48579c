"""The Host header: its shape, its name, and whether an origin is the same host."""

import re
from urllib.parse import urlsplit

_HOST = re.compile(
    rb"^(?:[A-Za-z0-9](?:[A-Za-z0-9._-]{0,252})|\[[0-9A-Fa-f:.]{2,45}\])(?::\d{1,5})?$"
)


def is_well_formed(values: list[bytes]) -> bool:
    """Whether there is exactly one Host header, and it is a host and nothing else."""
    return len(values) == 1 and _HOST.match(values[0]) is not None


def host_name(host: bytes) -> str:
    """Return the name or address of a well-formed Host header, without brackets and port."""
    text = host.decode("ascii").lower()
    if text.startswith("["):
        return text[1 : text.index("]")]
    return text.partition(":")[0]


def is_same_origin(origin: str, host: bytes) -> bool:
    """Whether a browser's Origin names the host that it asks."""
    return urlsplit(origin).netloc.lower() == host.decode("ascii").lower()
