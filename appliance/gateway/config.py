"""Reads a gateway's configuration, which comes as JSON on an inherited descriptor."""

import os

import msgspec

from appliance.control_link.gateway_config import GatewayConfig

__all__ = ["ConfigError", "GatewayConfig", "read_config"]


class ConfigError(Exception):
    """There is no usable configuration; starting again does not help."""


def read_config(descriptor: int) -> GatewayConfig:
    """Read the configuration to its end and close the descriptor.

    Raises:
        ConfigError: nothing there, or not a configuration.
    """
    try:
        with os.fdopen(descriptor, "rb") as file:
            return msgspec.json.decode(file.read(), type=GatewayConfig)
    except (OSError, msgspec.MsgspecError) as error:
        raise ConfigError(f"no usable configuration on descriptor {descriptor}: {error}") from error
