"""Makes small wheels that carry a model, and the pack that describes one."""

import hashlib
import zipfile
from pathlib import Path

from appliance.model_store.packs import Pack

MODEL = b"GGUF" + bytes(range(256)) * 40


def make_wheel(directory: Path, content: bytes = MODEL) -> Path:
    """Write a wheel that pip accepts; it asks for a dependency that does not exist."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "qd_test_model-1.0-py3-none-any.whl"
    info = "qd_test_model-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("qd_test_model/model.gguf", content)
        archive.writestr(
            f"{info}/METADATA",
            "Metadata-Version: 2.1\nName: qd-test-model\nVersion: 1.0\n"
            "Requires-Dist: qd-no-such-package\n",
        )
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    return path


def pack_of(wheel: Path, **changes: object) -> Pack:
    """Describe a wheel as the table would."""
    fields = {
        "name": "tiny",
        "title": "Tiny",
        "licence": "Apache-2.0",
        "package": "qd-test-model",
        "version": "1.0",
        "wheel_sha256": hashlib.sha256(wheel.read_bytes()).hexdigest(),
        "wheel_bytes": wheel.stat().st_size,
        "file": "qd_test_model/model.gguf",
        "file_bytes": len(MODEL),
    }
    return Pack(**(fields | changes))
