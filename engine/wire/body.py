"""The base of all message bodies."""

import msgspec


class Body(msgspec.Struct, frozen=True, array_like=True, gc=False, kw_only=True):
    """Base of all message bodies: immutable, positional on the wire, keyword-only in code.

    Subclasses repeat `frozen=True`: msgspec inherits it, type checkers do not.
    """
