"""The checks of `doctor`: each looks at one thing of this machine and says what to do about it."""

import os
import platform
import resource
import shutil
import socket
import sys
from collections.abc import Callable
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from appliance.cli.doctor_finding import Finding, Verdict
from appliance.cli.doctor_kernels import check_kernels
from appliance.config.kernel_checks import needs_cpu_kernels
from appliance.config.paths import NotRunningError, find_instance, model_dir, state_dir
from appliance.config.settings import DEFAULT_MODEL, EngineSettings, Settings

_OLDEST_PYTHON = (3, 11)
_LEAST_FREE_BYTES = 2 << 30
_LEAST_FILES = 1024
_NVIDIA = Path("/proc/driver/nvidia/version")


def run_checks(settings: Settings) -> list[Finding]:
    """Run all checks, in the order in which problems would show."""
    state, models = state_dir(settings.state_dir), model_dir(settings.model_dir)
    names = {engine.model or settings.model for engine in settings.engines} or {settings.model}
    devices = {engine.device or settings.device for engine in settings.engines} or {settings.device}
    checks: tuple[Callable[[], Finding], ...] = (
        _python,
        _system,
        _torch,
        *(partial(_device, device) for device in sorted(devices)),
        *(partial(check_kernels, *wish) for wish in _kernel_wishes(settings)),
        _files_limit,
        lambda: _directory("state directory", state),
        lambda: _directory("model directory", models),
        *(partial(_model, model, models) for model in sorted(names)),
        lambda: _instance(state),
    )
    findings = [check() for check in checks]
    if findings[-1].verdict is Verdict.OK and findings[-1].text.startswith("running"):
        return findings
    return [
        *findings,
        _port(settings.host, settings.port),
        _port(settings.admin_host, settings.admin_port),
    ]


def _kernel_wishes(settings: Settings) -> list[tuple[str, str | None]]:
    """Return the different settings `kernels` and `dtype` of engines on the CPU."""
    wishes = {
        (_kernels(settings, own), own.dtype or settings.dtype)
        for own in settings.engines or [EngineSettings.model_validate({})]
        if (own.device or settings.device) == "cpu"
    }
    return sorted(wishes, key=str)


def _kernels(settings: Settings, own: EngineSettings) -> str:
    """Return the setting `kernels`; `cpu` where only these can do what other settings ask for."""
    wish = own.kernels or settings.kernels
    return "cpu" if wish == "auto" and needs_cpu_kernels(settings, own) else wish


def _python() -> Finding:
    found = platform.python_version()
    if sys.version_info[:2] < _OLDEST_PYTHON:
        return Finding("python", Verdict.FAILED, found, "Python 3.11 or newer is needed.")
    return Finding("python", Verdict.OK, found)


def _system() -> Finding:
    found = f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores"
    if platform.system() != "Linux":
        return Finding("system", Verdict.FAILED, found, "Only Linux is supported.")
    return Finding("system", Verdict.OK, found)


def _torch() -> Finding:
    try:
        return Finding("torch", Verdict.OK, version("torch"))
    except PackageNotFoundError:
        return Finding("torch", Verdict.FAILED, "not installed", "make serve installs it.")


def _device(device: str) -> Finding:
    if not device.startswith("cuda"):
        return Finding("device", Verdict.OK, f"{device} (the GPU path is unproven on CUDA)")
    if not _NVIDIA.exists():
        return Finding("device", Verdict.FAILED, f"{device}: no NVIDIA driver", "Use --device cpu.")
    hint = "It runs on torch's own kernels; please report what you see."
    return Finding("device", Verdict.WARNING, f"{device}: unproven on CUDA", hint)


def _files_limit() -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < _LEAST_FILES:
        hint = f"ulimit -n {min(hard, 65536)}"
        return Finding("open files", Verdict.WARNING, f"{soft} allowed", hint)
    return Finding("open files", Verdict.OK, f"{soft} allowed")


def _directory(name: str, path: Path) -> Finding:
    existing = next(parent for parent in (path, *path.parents) if parent.exists())
    if not os.access(existing, os.W_OK | os.X_OK):
        hint = "Name another in the configuration."
        return Finding(name, Verdict.FAILED, f"{path}: not writable", hint)
    free_bytes = shutil.disk_usage(existing).free
    told = f"{path}, {free_bytes / 1e9:.1f} GB free"
    if free_bytes < _LEAST_FREE_BYTES:
        return Finding(name, Verdict.WARNING, told, "Free at least 2 GB.")
    return Finding(name, Verdict.OK, told)


def _model(model: str, models: Path) -> Finding:
    from appliance.model_store.packs import PACKS
    from appliance.model_store.store import find_pulled

    pack = PACKS.get(model)
    if pack is None:
        return _model_elsewhere(model, models)
    if find_pulled(pack, models) is None:
        hint = f"quarterdeck models pull {model}"
        return Finding("model", Verdict.WARNING, f"{model}: not pulled", hint)
    return Finding("model", Verdict.OK, f"{model}: pulled")


def _model_elsewhere(model: str, models: Path) -> Finding:
    from appliance.model_store.hub_store import find_hub_model, hub_reference

    if Path(model).expanduser().exists():
        return Finding("model", Verdict.OK, model)
    reference = hub_reference(model)
    if reference is None:
        hint = f"Give a path, a pack such as {DEFAULT_MODEL}, or a hub id."
        return Finding("model", Verdict.FAILED, f"{model}: no such path", hint)
    if find_hub_model(reference, models) is None:
        hint = f"quarterdeck models pull {model}"
        return Finding("model", Verdict.WARNING, f"{model}: not pulled from the hub", hint)
    return Finding("model", Verdict.OK, f"{model}: pulled")


def _instance(state: Path) -> Finding:
    try:
        found = find_instance(state)
    except NotRunningError:
        return Finding("appliance", Verdict.OK, "not running")
    if not _answers(found.admin_socket):
        hint = f"Look at process {found.pid}; it may hang or be starting."
        return Finding("appliance", Verdict.WARNING, "running, but it does not answer", hint)
    told = f"running, process {found.pid}, port {found.port}, admin port {found.admin_port}"
    return Finding("appliance", Verdict.OK, told)


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(1.0)
        try:
            client.connect(str(path))
        except OSError:
            return False
    return True


def _port(host: str, port: int) -> Finding:
    name = f"port {port}"
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            hint = f"ss -ltnp 'sport = :{port}' says who holds it; or choose another port."
            return Finding(name, Verdict.WARNING, f"{host}: {error.strerror}", hint)
    return Finding(name, Verdict.OK, f"free on {host}")
