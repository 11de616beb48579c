"""The error of a configuration that cannot be used. Imports nothing, so that anybody may."""


class ConfigError(Exception):
    """The configuration cannot be used. The message names source and key, never a secret."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint
