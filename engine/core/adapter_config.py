"""Reads `adapter_config.json` of a PEFT directory, and refuses what plain LoRA cannot express."""

import math
import re
from collections.abc import Sequence
from typing import Any

import msgspec

MAX_CONFIG_BYTES = 1 << 20
_MAX_PATTERNS = 512
_MAX_PATTERN_LENGTH = 256

_PATTERN = re.compile(r"\^?(?:[\w.|-]|\\\.|\\d|\[\d+-\d+\]|(?<=[.d\]])[*+])+\$?")
"""Regular expressions that PEFT's rank and alpha patterns are written in, without nesting: these
cannot take exponential time."""
_MAX_WILDCARDS = 2

_PLAIN_INITS = (None, True, False, "true", "gaussian", "eva", "orthogonal")
"""Ways of initialising an adapter that leave the base model's weights as they are."""

_UNSUPPORTED = {
    "use_dora": "DoRA (use_dora)",
    "modules_to_save": "whole retrained modules (modules_to_save)",
    "lora_bias": "biases (lora_bias)",
    "trainable_token_indices": "retrained tokens (trainable_token_indices)",
    "target_parameters": "updates of bare parameters (target_parameters)",
    "layer_replication": "replicated layers (layer_replication)",
    "use_qalora": "QA-LoRA (use_qalora)",
    "use_bdlora": "block-diagonal LoRA (use_bdlora)",
    "alora_invocation_tokens": "activated LoRA (alora_invocation_tokens)",
    "arrow_config": "routed adapters (arrow_config)",
    "kasa_config": "KaSA (kasa_config)",
    "monteclora_config": "MonteCLoRA (monteclora_config)",
    "velora_config": "VeLoRA (velora_config)",
}
_EMBEDDINGS = ("embed_tokens", "lm_head", "wte", "embedding")


class AdapterError(Exception):
    """An adapter cannot be used; the text says why and names what is wrong with it."""


class AdapterConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The facts of an adapter that change what it computes."""

    rank: int
    alpha: float
    use_rslora: bool = False
    rank_pattern: tuple[tuple[str, int], ...] = ()
    """(pattern, rank) for modules whose name it matches; the first match counts."""
    alpha_pattern: tuple[tuple[str, float], ...] = ()
    targets: tuple[str, ...] = ()
    """Module names where they are listed one by one; the weights decide what is changed."""

    def rank_of(self, module: str) -> int:
        """Return the rank at a module, for example `model.layers.0.self_attn.q_proj`."""
        return _matching(self.rank_pattern, module, self.rank)

    def scale_of(self, module: str) -> float:
        """Return the factor of the product of A and B at a module."""
        rank = self.rank_of(module)
        alpha = _matching(self.alpha_pattern, module, self.alpha)
        return alpha / (math.sqrt(rank) if self.use_rslora else rank)

    def canonical(self) -> bytes:
        """Return what of it belongs to the adapter's identity, the same for equal facts."""
        return msgspec.json.encode(
            [self.rank, self.alpha, self.use_rslora, self.rank_pattern, self.alpha_pattern]
        )


class _Fields(msgspec.Struct, kw_only=True):
    """As PEFT writes them; what is not here is not needed."""

    r: int
    lora_alpha: float
    use_rslora: bool | None = False
    rank_pattern: dict[str, int] | None = None
    alpha_pattern: dict[str, float] | None = None
    target_modules: list[str] | str | None = None


def parse_config(content: bytes, max_rank: int) -> AdapterConfig:
    """Return the facts in an `adapter_config.json`.

    Raises:
        AdapterError: it is no sound configuration of a LoRA adapter, its rank is above `max_rank`,
            or it asks for more than plain LoRA on linear layers.
    """
    try:
        fields = msgspec.json.decode(content, type=dict[str, Any])
        _refuse_variants(fields)
        plain = msgspec.convert(fields, _Fields)
    except (ValueError, RecursionError) as error:
        raise AdapterError(f"adapter_config.json is not valid: {error}") from error
    config = AdapterConfig(
        rank=plain.r,
        alpha=plain.lora_alpha,
        use_rslora=bool(plain.use_rslora),
        rank_pattern=tuple((plain.rank_pattern or {}).items()),
        alpha_pattern=tuple((plain.alpha_pattern or {}).items()),
        targets=tuple(plain.target_modules) if isinstance(plain.target_modules, list) else (),
    )
    _check_numbers(config, max_rank)
    _check_patterns([key for key, _ in (*config.rank_pattern, *config.alpha_pattern)])
    _check_targets(config.targets)
    return config


def _refuse_variants(fields: dict[str, Any]) -> None:
    kind = fields.get("peft_type")
    if kind != "LORA":
        raise AdapterError(f"peft_type {kind!r} is not supported; supported: LORA")
    if fields.get("bias") not in (None, "none"):
        raise AdapterError(f"bias {fields['bias']!r} is not supported; supported: none")
    for name, what in _UNSUPPORTED.items():
        if fields.get(name):
            raise AdapterError(f"{what} is not supported: only plain LoRA on linear layers is")
    how = fields.get("init_lora_weights")
    if how not in _PLAIN_INITS:
        raise AdapterError(
            f"init_lora_weights {how!r} changes the base model's weights: convert the adapter to "
            "plain LoRA"
        )


def _check_numbers(config: AdapterConfig, max_rank: int) -> None:
    for rank in (config.rank, *(rank for _, rank in config.rank_pattern)):
        if rank < 1:
            raise AdapterError(f"the rank must be at least 1, got {rank}")
        if rank > max_rank:
            raise AdapterError(f"rank {rank} is too high: this engine takes at most {max_rank}")
    for alpha in (config.alpha, *(alpha for _, alpha in config.alpha_pattern)):
        if not math.isfinite(alpha):
            raise AdapterError(f"lora_alpha must be finite, got {alpha}")


def _check_patterns(patterns: Sequence[str]) -> None:
    if len(patterns) > _MAX_PATTERNS:
        raise AdapterError(f"more than {_MAX_PATTERNS} entries in rank_pattern and alpha_pattern")
    for pattern in patterns:
        wildcards = pattern.count("*") + pattern.count("+")
        if (
            len(pattern) > _MAX_PATTERN_LENGTH
            or wildcards > _MAX_WILDCARDS
            or not _compiles(pattern)
        ):
            raise AdapterError(f"the pattern {pattern[:64]!r} is not supported")


def _compiles(pattern: str) -> bool:
    if not _PATTERN.fullmatch(pattern):
        return False
    try:
        re.compile(pattern)
    except re.error:
        return False
    return True


def _check_targets(targets: Sequence[str]) -> None:
    for target in targets:
        if target.rsplit(".", 1)[-1] in _EMBEDDINGS:
            raise AdapterError(f"target {target!r} is not supported: only linear layers are")


def _matching(patterns: Sequence[tuple[str, Any]], module: str, default: Any) -> Any:
    for pattern, value in patterns:
        if re.match(rf"(.*\.)?({pattern})$", module):
            return value
    return default
