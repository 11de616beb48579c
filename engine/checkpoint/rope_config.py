"""Reads the RoPE settings of a `config.json`, in the spelling of any transformers release."""

from collections.abc import Mapping
from typing import Any

from engine.checkpoint.model_shape import RopeScaling, unsupported_rope

_FULL, _LOCAL = "full_attention", "sliding_attention"
_PHI3_LONGROPE = ("su", "yarn")
"""What early Phi-3 files call `longrope`."""


def rope_theta(fields: Mapping[str, Any]) -> float:
    """Return the base of the frequencies."""
    return float(_settings(fields).get("rope_theta") or fields.get("rope_theta") or 10000.0)


def local_rope_theta(fields: Mapping[str, Any]) -> float:
    """Return the base of layers with a sliding window, where these have their own.

    Raises:
        UnsupportedModelError: these layers have a RoPE scaling.
    """
    local = (fields.get("rope_parameters") or {}).get(_LOCAL) or {}
    kind = local.get("rope_type", "default")
    if kind != "default":
        raise unsupported_rope(f"{kind} in layers with a sliding window")
    return float(local.get("rope_theta") or fields.get("rope_local_base_freq") or 10000.0)


def partial_rotary_factor(fields: Mapping[str, Any]) -> float:
    """Return the share of each head that rotates."""
    factor = _settings(fields).get("partial_rotary_factor")
    return float(fields.get("partial_rotary_factor", 1.0) if factor is None else factor)


def rope_scaling(fields: Mapping[str, Any]) -> RopeScaling:
    """Return how frequencies are stretched.

    Raises:
        UnsupportedModelError: in a way that the engine does not know.
        KeyError: a value that this way needs is missing.
    """
    settings = _settings(fields)
    kind = settings.get("rope_type") or settings.get("type") or "default"
    if kind in _PHI3_LONGROPE and "long_factor" in settings:
        kind = "longrope"
    match kind:
        case "default":
            return RopeScaling()
        case "linear":
            return RopeScaling(kind="linear", factor=float(settings["factor"]))
        case "llama3":
            return RopeScaling(
                kind="llama3",
                factor=float(settings["factor"]),
                low_freq_factor=float(settings["low_freq_factor"]),
                high_freq_factor=float(settings["high_freq_factor"]),
                original_max_position_embeddings=int(settings["original_max_position_embeddings"]),
            )
        case "yarn":
            return _yarn(settings, fields)
        case "longrope":
            return _longrope(settings, fields)
        case _:
            raise unsupported_rope(kind)


def _settings(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the RoPE settings; those of full attention where each layer type has its own."""
    settings = fields.get("rope_parameters") or fields.get("rope_scaling") or {}
    return settings.get(_FULL) or settings


def _yarn(settings: Mapping[str, Any], fields: Mapping[str, Any]) -> RopeScaling:
    original = settings.get("original_max_position_embeddings")
    return RopeScaling(
        kind="yarn",
        factor=float(settings["factor"]),
        original_max_position_embeddings=int(original or fields["max_position_embeddings"]),
        beta_fast=float(settings.get("beta_fast") or 32.0),
        beta_slow=float(settings.get("beta_slow") or 1.0),
        truncate=bool(settings.get("truncate", True)),
        attention_factor=_optional(settings, "attention_factor"),
        mscale=_optional(settings, "mscale"),
        mscale_all_dim=_optional(settings, "mscale_all_dim"),
    )


def _longrope(settings: Mapping[str, Any], fields: Mapping[str, Any]) -> RopeScaling:
    """Read a table of factors; `factor` is by how much the context was made longer."""
    longest = int(fields["max_position_embeddings"])
    asked = fields.get("original_max_position_embeddings") or settings.get(
        "original_max_position_embeddings"
    )
    original = int(asked or longest)
    return RopeScaling(
        kind="longrope",
        factor=longest / original if asked else float(settings.get("factor") or 1.0),
        original_max_position_embeddings=original,
        attention_factor=_optional(settings, "attention_factor"),
        short_factors=tuple(float(factor) for factor in settings["short_factor"]),
        long_factors=tuple(float(factor) for factor in settings["long_factor"]),
    )


def _optional(settings: Mapping[str, Any], name: str) -> float | None:
    value = settings.get(name)
    return None if value is None else float(value)
