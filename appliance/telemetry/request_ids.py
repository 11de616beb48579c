"""The forms of a request's id, and the part that they share.

`req-H`, `chatcmpl-H`, `cmpl-H` and the engine's `req-H-0`, `req-H-r1` name one request: H is 24 hex
digits.
"""

import re

_DIGITS = re.compile(r"(?<![0-9a-f])[0-9a-f]{24}(?![0-9a-f])")


def request_key(request_id: str) -> str:
    """Return what all forms of the id share; the id itself when it has no such part."""
    match = _DIGITS.search(request_id)
    return match.group() if match else request_id


def engine_suffix(engine_request_id: str) -> str:
    """Return what an engine's id adds to the request's, for example `-r1`; often nothing."""
    match = _DIGITS.search(engine_request_id)
    return engine_request_id[match.end() :] if match else engine_request_id
