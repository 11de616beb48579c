"""What is compared: Quarterdeck's variants and the peers, and how each of them is started."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

SLOT_TOKENS = 1024
"""Context of each slot of llama.cpp's server: enough for the longest prompt here and its answer."""
MIB = 1 << 20
Kind = Literal["quarterdeck", "llama", "vllm", "openvino"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """One thing that is measured."""

    name: str
    title: str
    kind: Kind
    flags: tuple[str, ...] = ()
    """More flags of `quarterdeck serve`."""
    weights: str = ""
    """The peer's model, below the cache directory of `peers.sh`."""
    streams: tuple[int, ...] = ()
    """Where throughput is measured unless all is asked for; empty: everywhere."""
    memory_bytes: int = 1024 * MIB
    """What it may need: others that rest are ended first if there is less."""
    scenarios: frozenset[str] = field(default=frozenset({"throughput", "ttft", "prefill"}))

    @property
    def is_ours(self) -> bool:
        """Whether it is Quarterdeck."""
        return self.kind == "quarterdeck"

    @property
    def is_server(self) -> bool:
        """Whether it answers over HTTP."""
        return self.kind != "openvino"


_ALL = frozenset({"throughput", "ttft", "prefill", "staggered"})
_WITH_CONTEXT = _ALL | {"context"}
OURS = "quarterdeck"
SUBJECTS: Mapping[str, Subject] = {
    each.name: each
    for each in (
        Subject(
            name=OURS,
            title="Quarterdeck, as shipped (Q4_1 file)",
            kind="quarterdeck",
            scenarios=_WITH_CONTEXT,
        ),
        Subject(
            name="quarterdeck-bf16",
            title="Quarterdeck, bf16 weights",
            kind="quarterdeck",
            flags=("--quantization", "none"),
            scenarios=_ALL,
        ),
        Subject(
            name="quarterdeck-int8",
            title="Quarterdeck, int8 weights",
            kind="quarterdeck",
            flags=("--quantization", "int8"),
            streams=(1, 32),
        ),
        Subject(
            name="quarterdeck-kv8",
            title="Quarterdeck, int8 KV cache",
            kind="quarterdeck",
            flags=("--kv-cache-dtype", "int8"),
            streams=(1, 32),
            scenarios=frozenset({"throughput", "staggered", "context"}),
        ),
        Subject(
            name="llama-q4_1",
            title="llama.cpp, the same Q4_1 file",
            kind="llama",
            weights="SmolLM2-135M-Instruct.Q4_1.gguf",
            streams=(1, 8),
        ),
        Subject(
            name="llama-q4_0",
            title="llama.cpp, Q4_0, its fastest",
            kind="llama",
            weights="smollm2-Q4_0.gguf",
            scenarios=_ALL,
        ),
        Subject(
            name="llama-q8_0",
            title="llama.cpp, Q8_0",
            kind="llama",
            weights="smollm2-Q8_0.gguf",
            streams=(1, 8),
        ),
        Subject(
            name="vllm",
            title="vLLM, bf16",
            kind="vllm",
            weights="smollm2",
            memory_bytes=6144 * MIB,
            scenarios=_ALL,
        ),
        Subject(
            name="openvino",
            title="OpenVINO GenAI, int8, in process without a server",
            kind="openvino",
            weights="openvino-int8",
            memory_bytes=2048 * MIB,
        ),
    )
}


@dataclass(frozen=True, slots=True)
class Peers:
    """Where `peers.sh` put them.

    Args:
        cache: The directory.
        threads: That every subject may use.
    """

    cache: Path
    threads: int

    def weights(self, subject: Subject) -> Path:
        """Return the peer's model."""
        return self.cache / subject.weights

    def program(self, subject: Subject) -> Path:
        """Return what must be there for it to run."""
        return {
            "llama": self.cache / "llama/build/bin/llama-server",
            "vllm": self.cache / "vllm/bin/vllm",
            "openvino": self.cache / "openvino/bin/python",
        }[subject.kind]

    def is_installed(self, subject: Subject) -> bool:
        """Return whether it can be measured."""
        if subject.is_ours:
            return True
        return self.program(subject).exists() and self.weights(subject).exists()

    def command(self, subject: Subject, streams: int, port: int) -> list[str]:
        """Return how the peer is started."""
        program, weights = str(self.program(subject)), str(self.weights(subject))
        if subject.kind == "llama":
            return [
                *(program, "-m", weights, "-t", str(self.threads)),
                *("-np", str(streams), "-c", str(SLOT_TOKENS * streams)),
                *("--host", "127.0.0.1", "--port", str(port)),
            ]
        if subject.kind == "vllm":
            return [
                *(program, "serve", weights, "--served-model-name", "x"),
                *("--max-model-len", "8192", "--max-num-seqs", "32", "--dtype", "bfloat16"),
                *("--host", "127.0.0.1", "--port", str(port)),
            ]
        driver = Path(__file__).with_name("openvino_driver.py")
        return [program, str(driver), weights, "--threads", str(self.threads)]

    def environment(self, subject: Subject) -> dict[str, str]:
        """Return what the peer needs beside the environment as it is."""
        quiet = {"HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1"}
        if subject.kind != "vllm":
            return quiet
        return quiet | {
            "VLLM_CPU_KVCACHE_SPACE": "2",
            "VLLM_CPU_OMP_THREADS_BIND": f"0-{self.threads - 1}",
            "VLLM_NO_USAGE_STATS": "1",
        }


def has_one_size(subject: Subject) -> bool:
    """Return whether one server serves any number of streams; llama.cpp's has fixed slots."""
    return subject.kind != "llama"


def chosen(names: Sequence[str]) -> list[Subject]:
    """Return the subjects of these names.

    Raises:
        ValueError: there is none of a name.
    """
    unknown = [name for name in names if name not in SUBJECTS]
    if unknown:
        raise ValueError(f"unknown: {', '.join(unknown)}; there are {', '.join(SUBJECTS)}")
    return [SUBJECTS[name] for name in names]
