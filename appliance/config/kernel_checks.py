"""Whether the settings of one engine about kernels and formats go together."""

from collections.abc import Mapping

from appliance.config.errors import ConfigError
from appliance.config.settings import EngineSettings, Settings

_NAMES = {"kernels", "device", "dtype", "quantization", "kv_cache_dtype"}
_HINTS = {
    "kernels": "Leave kernels at auto.",
    "device": "They run on the device cpu.",
    "dtype": "They compute in bfloat16: leave dtype out.",
}


def check_kernels(settings: Settings, own: EngineSettings, origins: Mapping[str, str]) -> None:
    """Refuse here what an engine would refuse at its start.

    Args:
        settings: Of the appliance.
        own: Of the engine; what it leaves out is the appliance's.
        origins: Where each of the settings came from.

    Raises:
        ConfigError: something needs the CPU kernels, and something else rules them out.
    """
    given = own.model_dump(include=_NAMES, exclude_none=True)
    values = _values(settings, own)
    wish, obstacle = _wish(values), _obstacle(values)
    if wish is None or obstacle is None:
        return
    wanted, against = (
        f"{origins['engines']}: {name} = {values[name]!r}"
        if name in given
        else f"{origins[name]} = {values[name]!r}"
        for name in (wish, obstacle)
    )
    raise ConfigError(
        f"{wanted} needs the cpu kernels, which {against} rules out", hint=_HINTS[obstacle]
    )


def needs_cpu_kernels(settings: Settings, own: EngineSettings) -> bool:
    """Whether this engine cannot start without the CPU kernels."""
    return _wish(_values(settings, own)) is not None


def _values(settings: Settings, own: EngineSettings) -> dict[str, str | None]:
    given = own.model_dump(include=_NAMES, exclude_none=True)
    return settings.model_dump(include=_NAMES) | given


def _wish(values: Mapping[str, str | None]) -> str | None:
    """Return the setting that only the CPU kernels can fulfil."""
    if str(values["kernels"]).startswith("cpu"):
        return "kernels"
    if values["quantization"] in ("int8", "w4"):
        return "quantization"
    return "kv_cache_dtype" if values["kv_cache_dtype"] == "int8" else None


def _obstacle(values: Mapping[str, str | None]) -> str | None:
    """Return the setting that rules them out."""
    if values["kernels"] == "reference":
        return "kernels"
    if values["device"] != "cpu":
        return "device"
    return "dtype" if values["dtype"] not in (None, "bfloat16") else None
