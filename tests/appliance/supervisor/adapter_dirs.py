"""Directories that look like PEFT adapters; what is in their weights matters to nobody here."""

import json
from pathlib import Path


def make_dir(path: Path, weights: str = "weights", *files: str) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    (path / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 8}))
    (path / "adapter_model.safetensors").write_text(weights)
    for name in files:
        (path / name).touch()
    return path
