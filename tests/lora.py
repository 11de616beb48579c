"""Writes small PEFT adapters with random weights, without `peft`."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from engine.checkpoint.checkpoint import open_checkpoint

ALL_LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def linear_shapes(model_dir: Path, targets: Sequence[str]) -> dict[str, tuple[int, int]]:
    """`[out, in]` of the model's linear layers by module name, for those in `targets`."""
    found: dict[str, tuple[int, int]] = {}
    for name, entry in open_checkpoint(model_dir).tensors.items():
        module = name.removesuffix(".weight")
        if re.search(r"\.layers\.\d+\.", name) and module.rsplit(".", 1)[-1] in targets:
            found[module] = (entry.shape[0], entry.shape[1])
    return found


def adapter_tensors(
    model_dir: Path,
    *,
    rank: int,
    seed: int,
    targets: Sequence[str] = ALL_LINEAR,
    alpha: float | None = None,
    use_rslora: bool = False,
    ranks: Mapping[str, int] | None = None,
    strength: float = 0.5,
) -> dict[str, np.ndarray]:
    """Random A and B of every layer; their product is `strength` times a usual weight.

    `ranks`: of single targets, as in a `rank_pattern`.
    """
    rng = np.random.default_rng(seed)
    tensors: dict[str, np.ndarray] = {}
    for module, (rows, columns) in linear_shapes(model_dir, targets).items():
        own = (ranks or {}).get(module.rsplit(".", 1)[-1], rank)
        scale = (rank if alpha is None else alpha) / (own**0.5 if use_rslora else own)
        down = rng.standard_normal((own, columns)) / columns**0.5
        up = rng.standard_normal((rows, own)) * strength / (scale * own**0.5)
        key = f"base_model.model.{module}."
        tensors[key + "lora_A.weight"] = down.astype(np.float32)
        tensors[key + "lora_B.weight"] = up.astype(np.float32)
    assert tensors, f"{model_dir} has none of {targets}"
    return tensors


def make_adapter(
    directory: Path,
    *,
    rank: int,
    seed: int,
    model_dir: Path,
    targets: Sequence[str] = ALL_LINEAR,
    alpha: float | None = None,
    use_rslora: bool = False,
    ranks: Mapping[str, int] | None = None,
    strength: float = 0.5,
    config: Mapping[str, object] | None = None,
) -> Path:
    """Write a PEFT directory for the model in `model_dir`; return its path.

    Args:
        directory: Made if need be; files in it are replaced.
        rank: Of all targets but those in `ranks`.
        seed: Of the weights.
        model_dir: Hugging Face directory or GGUF file of the base model.
        targets: Phi-3's are `qkv_proj`, `o_proj`, `gate_up_proj`, `down_proj`.
        alpha: None: the rank, so that the scale is 1.
        use_rslora: Whether the scale is `alpha / sqrt(rank)`.
        ranks: Other ranks of single targets, by name.
        strength: How much it changes, relative to usual weights: 0.5 changes every token.
        config: Further fields of `adapter_config.json`, or other values.
    """
    directory.mkdir(parents=True, exist_ok=True)
    fields: dict[str, object] = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": str(model_dir),
        "r": rank,
        "lora_alpha": rank if alpha is None else alpha,
        "lora_dropout": 0.0,
        "use_rslora": use_rslora,
        "use_dora": False,
        "bias": "none",
        "fan_in_fan_out": False,
        "init_lora_weights": True,
        "inference_mode": True,
        "modules_to_save": None,
        "layers_to_transform": None,
        "rank_pattern": dict(ranks or {}),
        "alpha_pattern": {},
        "target_modules": list(targets),
    }
    (directory / "adapter_config.json").write_text(json.dumps(fields | dict(config or {})))
    tensors = adapter_tensors(
        model_dir,
        rank=rank,
        seed=seed,
        targets=targets,
        alpha=alpha,
        use_rslora=use_rslora,
        ranks=ranks,
        strength=strength,
    )
    save_file(tensors, str(directory / "adapter_model.safetensors"))
    return directory
