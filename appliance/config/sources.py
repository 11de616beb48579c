"""Collects the settings: flag, environment, files, default; knows where each value came from.

Precedence, highest first: flag, `QUARTERDECK_*` (then `OTEL_EXPORTER_OTLP_...`), `--config
FILE`, `./quarterdeck.toml`, the user's file, `/etc/quarterdeck/quarterdeck.toml`, default. A list
replaces a list of lower precedence.
"""

import os
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from pydantic import BaseModel, ValidationError

from appliance.config.checks import check, describe_error, nearest
from appliance.config.errors import ConfigError
from appliance.config.paths import CONFIG_NAME, SYSTEM_CONFIG, user_config
from appliance.config.settings import EngineSettings, Settings, SloSettings
from appliance.config.values import SECRET_KEYS, convert

PREFIX = "QUARTERDECK_"
DEFAULT = "default"
OTLP_VARIABLES = {
    "otlp_endpoint": ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"),
    "otlp_protocol": ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"),
}
"""OpenTelemetry's own names of settings; `appliance.config.otlp` reads the others."""
_NOT_SETTINGS = frozenset(
    {
        "QUARTERDECK_CONFIG",
        "QUARTERDECK_URL",
        "QUARTERDECK_CPU_LIBRARY",  # for developers: another build of the kernels
        "QUARTERDECK_BUILD_KERNELS",
    }
)
_KUBERNETES = re.compile(r"QUARTERDECK_(?:.*_)?(?:SERVICE_(?:HOST|PORT).*|PORT_\d+_(?:TCP|UDP).*)")
"""What a cluster injects for a service called `quarterdeck`."""

_CREDENTIALS = re.compile(r"(?<=://)[^/@\s]+@")
REDACTED = "(redacted)"


@dataclass(frozen=True, slots=True)
class LoadedSettings:
    """The settings, and for each of their keys the place that it came from."""

    settings: Settings
    origins: dict[str, str]
    warnings: tuple[str, ...] = ()
    """For the operator, at the start; what is forbidden is a `ConfigError` instead."""

    def shown(self) -> dict[str, Any]:
        """Return every setting as plain JSON values, secrets redacted."""
        values = self.settings.model_dump(mode="json")
        return {key: redact(key, value) for key, value in values.items()}


@dataclass(frozen=True, slots=True)
class _Layer:
    """One source: its raw values, how it calls a key, and where its relative paths start."""

    values: Mapping[str, Any]
    name: Callable[[str], str]
    base: Path


def load_settings(
    flags: Mapping[str, Any],
    *,
    env: Mapping[str, str],
    cwd: Path,
    user_config: Path | None,
    system_config: Path | None,
) -> LoadedSettings:
    """Collect the settings from all sources. `flags` with the value None were not given.

    Raises:
        ConfigError: an unknown key, a bad value, or settings that do not go together.
    """
    given = {key: value for key, value in flags.items() if value is not None}
    named = given.pop("config", None) or env.get("QUARTERDECK_CONFIG") or None
    layers = [_Layer(given, _flag_name, cwd), _environment(env, cwd), _open_telemetry(env, cwd)]
    if named is not None:
        layers.append(_file(cwd / Path(named).expanduser(), required=True))
    layers += [_file(path) for path in (cwd / CONFIG_NAME, user_config, system_config) if path]
    return _merge(layers)


def load_from_process(flags: Mapping[str, Any]) -> LoadedSettings:
    """Collect the settings of this process: its environment, its directory, the usual files."""
    return load_settings(
        flags,
        env=os.environ,
        cwd=Path.cwd(),
        user_config=user_config(),
        system_config=SYSTEM_CONFIG,
    )


def redact(key: str, value: Any) -> Any:
    """Return what may be shown of a setting."""
    if key in SECRET_KEYS:
        return [REDACTED] * len(value)
    if isinstance(value, str):
        return _CREDENTIALS.sub(f"{REDACTED}@", value)
    return value


def _merge(layers: list[_Layer]) -> LoadedSettings:
    values: dict[str, Any] = {}
    origins = dict.fromkeys(Settings.model_fields, DEFAULT)
    for layer in reversed(layers):
        for raw_key, raw in layer.values.items():
            key = _field_of(raw_key, raw)
            origin = layer.name(raw_key)
            if key not in Settings.model_fields:
                raise ConfigError(f"{origin}: unknown setting", hint=nearest(key, Settings))
            values[key] = _converted(key, raw, layer.base, origin)
            origins[key] = origin
    try:
        settings = Settings(**values)
    except ValidationError as error:
        raise describe_error(error, origins) from None  # its text could show a key
    return LoadedSettings(settings, origins, tuple(check(settings, origins)))


def _converted(key: str, raw: Any, base: Path, origin: str) -> Any:
    try:
        if key == "engines":
            return [_engine(table, base) for table in raw]
        return _slo(convert(key, raw, base)) if key == "slo" else convert(key, raw, base)
    except ValueError as error:
        raise ConfigError(f"{origin}: {error}") from error


def _engine(table: Any, base: Path) -> Any:
    if not isinstance(table, dict):
        return table  # Settings refuses it
    entries = cast("dict[str, Any]", table)
    _check_names(entries, EngineSettings, "[[engines]]")
    return {key: convert(key, value, base) for key, value in entries.items()}


def _slo(value: Any) -> Any:
    if isinstance(value, dict):
        _check_names(cast("dict[str, Any]", value), SloSettings, "[slo]")
    return value


def _check_names(entries: dict[str, Any], model: type[BaseModel], where: str) -> None:
    for key in entries:
        if key not in model.model_fields:
            hint = nearest(key, model) or ""
            raise ValueError(f"unknown key {key!r} in {where}. {hint}".rstrip())


def _field_of(key: str, value: Any) -> str:
    """`engines` is a number on the command line and in the environment, tables in a file."""
    return "num_engines" if key == "engines" and not isinstance(value, list) else key


def _flag_name(key: str) -> str:
    return "MODEL" if key == "model" else f"--{key.replace('_', '-')}"


def _environment(env: Mapping[str, str], cwd: Path) -> _Layer:
    values = {
        name.removeprefix(PREFIX).lower(): text
        for name, text in env.items()
        if name.startswith(PREFIX)
        and text
        and name not in _NOT_SETTINGS
        and not _KUBERNETES.fullmatch(name)
    }
    return _Layer(values, lambda key: PREFIX + key.upper(), cwd)


def _open_telemetry(env: Mapping[str, str], cwd: Path) -> _Layer:
    """Take OpenTelemetry's variables that say where to export to."""
    used = {
        key: next(name for name in names if env.get(name))
        for key, names in OTLP_VARIABLES.items()
        if any(map(env.get, names))
    }
    return _Layer({key: env[name] for key, name in used.items()}, used.__getitem__, cwd)


def _file(path: Path, *, required: bool = False) -> _Layer:
    """Read one TOML file; one that is not there is empty unless it was asked for."""

    def name(key: str) -> str:
        return f"{path}: {key}"

    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if required:
            raise ConfigError(f"there is no configuration file {path}") from None
        values = {}
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error
    for key in SECRET_KEYS & values.keys():
        raise ConfigError(
            f"{path}: {key} may not stand in a configuration file",
            hint=f"Name a file with mode 0600 in {key}_file instead, or set {PREFIX}{key.upper()}.",
        )
    return _Layer(values, name, path.parent)
