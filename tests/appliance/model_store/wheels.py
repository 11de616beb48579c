"""Makes small wheels that carry a model or a part of one, and the packs that describe them."""

import hashlib
import itertools
import zipfile
from collections.abc import Sequence
from pathlib import Path

from appliance.model_store.packs import Pack, Wheel

MODEL = b"GGUF" + bytes(range(256)) * 40


def make_wheel(directory: Path, content: bytes = MODEL, name: str = "qd_test_model") -> Path:
    """Write a wheel that pip accepts; it asks for a dependency that does not exist."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{name}-1.0-py3-none-any.whl"
    info = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}/model.gguf", content)
        archive.writestr(
            f"{info}/METADATA",
            f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: 1.0\n"
            "Requires-Dist: qd-no-such-package\n",
        )
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    return path


def make_parts(directory: Path) -> list[Path]:
    """Write the model in three wheels."""
    cuts = (0, 1000, 5000, len(MODEL))
    return [
        make_wheel(directory, MODEL[start:end], f"qd_test_part{number}")
        for number, (start, end) in enumerate(itertools.pairwise(cuts))
    ]


def wheel_of(path: Path, **changes: object) -> Wheel:
    """Describe a wheel as the table would."""
    name = path.name.split("-")[0]
    fields = {
        "package": name.replace("_", "-"),
        "version": "1.0",
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "num_bytes": path.stat().st_size,
        "file": f"{name}/model.gguf",
    }
    return Wheel(**(fields | changes))


def pack_of(*paths: Path, wheels: Sequence[Wheel] = (), **changes: object) -> Pack:
    """Describe a pack as the table would."""
    fields = {
        "name": "tiny",
        "title": "Tiny",
        "licence": "Apache-2.0",
        "wheels": tuple(wheels or map(wheel_of, paths)),
        "file": "model.gguf",
        "file_sha256": hashlib.sha256(MODEL).hexdigest(),
        "file_bytes": len(MODEL),
    }
    return Pack(**(fields | changes))
