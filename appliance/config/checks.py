"""What settings must hold together, and the words for what is wrong with one."""

import difflib
import re
from collections.abc import Iterator, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from appliance.config.errors import ConfigError
from appliance.config.kernel_checks import check_kernels
from appliance.config.key_files import BadKeyError, check_key, read_keys
from appliance.config.network import is_loopback
from appliance.config.otlp import check_otlp
from appliance.config.settings import EngineSettings, Settings, SloSettings
from appliance.config.values import SECRET_KEYS
from engine.config import POLICIES, POLICY_GROUP

_PATTERNS = {
    "device": "cpu, cuda or cuda:N",
    "dtype": "bfloat16, float16, float32 or auto",
    "kernels": "auto, reference, cpu or cpu:NAME (quarterdeck doctor names them)",
}


def nearest(key: str, model: type[BaseModel]) -> str | None:
    """Return `Did you mean ...?` if a field has a similar name."""
    names = difflib.get_close_matches(key, model.model_fields, n=1, cutoff=0.5)
    return f"Did you mean {names[0]}?" if names else None


def describe_error(error: ValidationError, origins: Mapping[str, str]) -> ConfigError:
    """Say in one line per value where it came from, what it was and what is allowed."""
    lines = [
        _describe(detail["loc"], detail["msg"], detail["input"], origins)
        for detail in error.errors(include_url=False)
    ]
    return ConfigError("\n".join(lines))


def _describe(
    location: tuple[int | str, ...], message: str, value: Any, origins: Mapping[str, str]
) -> str:
    key = str(location[0])
    field = next((str(part) for part in reversed(location) if isinstance(part, str)), key)
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location[1:])
    shown = "" if key in SECRET_KEYS else f" = {value!r}"
    nested = SloSettings if key == "slo" else EngineSettings
    allowed = _allowed(nested if field != key else Settings, field) or message
    return f"{origins.get(key, key)}{path}{shown}: {allowed}{_near(allowed, value)}"


def _near(allowed: str, value: Any) -> str:
    """Return a guess of what was meant, if one of the allowed words is similar."""
    words = re.split(r", or |, | or ", allowed.removeprefix("allowed is "))
    found = difflib.get_close_matches(value, words, n=1) if isinstance(value, str) else []
    return f"; did you mean {found[0]}?" if found else ""


def _allowed(model: type[BaseModel], field: str) -> str | None:
    if field in _PATTERNS:
        return f"allowed is {_PATTERNS[field]}"
    schema = model.model_json_schema()["properties"].get(field, {})
    for option in schema.get("anyOf", [schema]):
        if "enum" in option:
            return f"allowed is {' or '.join(option['enum'])}"
        if option.get("type") in {"integer", "number"}:
            return f"allowed is {_range(option)}"
    return None


def _range(option: Mapping[str, Any]) -> str:
    kind = "a whole number" if option["type"] == "integer" else "a number"
    low, above, high = (option.get(k) for k in ("minimum", "exclusiveMinimum", "maximum"))
    if low is not None and high is not None:
        return f"{kind} from {low:g} to {high:g}"
    if above is not None:
        return f"{kind} above {above:g}"
    return kind if low is None else f"{kind} of at least {low}"


def check(settings: Settings, origins: Mapping[str, str]) -> Iterator[str]:
    """Yield warnings about settings that are allowed but worth a word.

    Raises:
        ConfigError: settings contradict each other, or a file that they name cannot be used.
    """
    _check_engines(settings, origins)
    _check_scheduling(settings, origins)
    for own in settings.engines or [EngineSettings.model_validate({})]:
        check_kernels(settings, own, origins)
    _check_adapter_roots(settings, origins)
    _check_keys(settings, origins)
    _check_tls(settings)
    check_otlp(settings.otlp_endpoint, settings.otlp_protocol)
    if settings.port == settings.admin_port != 0:
        raise ConfigError(f"port and admin_port are both {settings.port}; they must differ")
    yield from _idle(settings, origins)
    yield from _exposure(settings)


def _check_engines(settings: Settings, origins: Mapping[str, str]) -> None:
    tables = len(settings.engines)
    if tables and origins["num_engines"] != "default" and settings.num_engines != tables:
        raise ConfigError(
            f"{origins['num_engines']} asks for {settings.num_engines} engines, but"
            f" {origins['engines']} lists {tables}",
            hint="Give either a number or [[engines]] tables.",
        )


def _check_scheduling(settings: Settings, origins: Mapping[str, str]) -> None:
    """Refuse here what an engine would refuse after its model was loaded."""
    known = {*POLICIES, *(point.name for point in entry_points(group=POLICY_GROUP))}
    if settings.policy not in known:
        raise ConfigError(
            f"{origins['policy']} = {settings.policy!r}: allowed is {', '.join(sorted(known))}"
        )
    if settings.max_num_batched_tokens < settings.max_num_seqs:
        raise ConfigError(
            f"{origins['max_num_batched_tokens']} = {settings.max_num_batched_tokens}:"
            f" allowed is max_num_seqs ({settings.max_num_seqs}) or more"
        )
    if settings.policy == "priority" and settings.reserved_seqs >= settings.max_num_seqs:
        raise ConfigError(
            f"{origins['reserved_seqs']} = {settings.reserved_seqs} leaves no place for others:"
            f" max_num_seqs is {settings.max_num_seqs}"
        )


def _check_adapter_roots(settings: Settings, origins: Mapping[str, str]) -> None:
    for root in settings.adapter_root:
        if not root.is_dir():
            raise ConfigError(f"{origins['adapter_root']}: there is no directory {root}")


def _idle(settings: Settings, origins: Mapping[str, str]) -> Iterator[str]:
    """Yield what was asked for and does nothing."""
    if settings.reserved_seqs and settings.policy != "priority":
        yield f"{origins['reserved_seqs']} has no effect without the policy priority"
    if settings.tenant_weights and settings.policy != "fair":
        yield f"{origins['tenant_weights']} has no effect without the policy fair"
    if settings.adapter_root and not settings.max_loras:
        yield f"{origins['adapter_root']} has no effect: {origins['max_loras']} is 0"


def _check_keys(settings: Settings, origins: Mapping[str, str]) -> None:
    try:
        for field, keys in (("api_key", settings.api_key), ("admin_key", settings.admin_key)):
            for key in keys:
                check_key(key, origins[field])
        for path in (settings.api_key_file, settings.admin_key_file):
            if path is not None:
                read_keys(path)
    except BadKeyError as error:
        raise ConfigError(str(error)) from error


def _check_tls(settings: Settings) -> None:
    if (settings.tls_cert is None) != (settings.tls_key is None):
        raise ConfigError("tls_cert and tls_key go together: give both or neither")
    for path in (settings.tls_cert, settings.tls_key):
        if path is not None and not path.is_file():
            raise ConfigError(f"there is no file {path}")


def _exposure(settings: Settings) -> Iterator[str]:
    planes = (("data plane", settings.host), ("control plane", settings.admin_host))
    for plane, host in planes:
        if is_loopback(host):
            continue
        if settings.no_auth:
            raise ConfigError(
                f"the {plane} would be open to everybody who reaches {host}",
                hint="--no-auth works on loopback addresses only.",
            )
        if settings.tls_cert is None:
            yield f"the {plane} on {host} has no TLS: keys and prompts travel as clear text"
    for path in _loose(settings):
        yield f"{path} can be read by other users; chmod 600 it"


def _loose(settings: Settings) -> Iterator[Path]:
    others = 0o077
    for path in (settings.api_key_file, settings.admin_key_file, settings.tls_key):
        if path is not None and path.stat().st_mode & others:
            yield path
