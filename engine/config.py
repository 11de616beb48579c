"""The configuration of one engine core, handed over by the launcher on an inherited descriptor."""

import msgspec

POLICIES = ("fcfs", "priority", "fair")
"""Scheduling policies that are always there."""
POLICY_GROUP = "quarterdeck.policies"
"""Entry points of the policies that installed packages bring."""
MAX_THREADS = 1024
"""Of an engine. The CPU kernels make no more; OpenMP crashes if it is asked for very many."""


class ClientEndpoint(msgspec.Struct, frozen=True, kw_only=True):
    """Where one client listens: the engine's DEALER connects to `input`, its PUSH to `output`."""

    name: str
    """`supervisor`, `gateway-0`, ..."""
    input: str
    output: str


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Everything an engine process needs to start. Index 0 of `clients` is the supervisor."""

    engine_id: str
    epoch: int
    model: str
    """Path of a `.gguf` file or of a Hugging Face directory."""
    model_name: str
    clients: tuple[ClientEndpoint, ...]
    device: str = "cpu"
    dtype: str | None = None
    """`bfloat16`, `float32`, `float16`; None: the checkpoint's, else what the device does well."""
    quantization: str = "auto"
    """`auto`, `none`, `int8`, `w4`: how the weights of linear layers are kept. `auto`: as the file
    holds them, else in `dtype`, or in int8 when they are large."""
    kv_cache_dtype: str = "auto"
    """`auto`, `bfloat16`, `int8`."""
    kernels: str = "auto"
    """`auto`, `reference`, `cpu`, or `cpu:` with an instruction set of this build (`cpu:avx2`)."""
    weight_cache_dir: str | None = None
    """Where weights are kept in the layout of the kernels; None: they are packed at each start."""
    weight_cache_bytes: int = 16 << 30
    """Most that this directory may hold; the least recently used go."""
    max_model_len: int | None = None
    """None: the checkpoint's, capped by what the KV cache holds."""
    kv_cache_bytes: int | None = None
    """None: 256 MiB on the CPU, half of the free memory on a GPU."""
    block_size: int = 16
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 512
    """Token budget of a step."""
    num_threads: int | None = None
    heartbeat_s: float = 0.5
    outbox_limit: int = 1024
    """Messages that wait for one client; beyond, the client is cut off."""
    policy: str = "fcfs"
    """`fcfs`, `priority`, `fair`, or a name of the entry point group `quarterdeck.policies`."""
    reserved_seqs: int = 0
    """Of `max_num_seqs`, places that only requests of negative (high) priority may take."""
    tenant_weights: dict[str, float] = {}
    """For `fair`: share of a tenant, 1 when it is not named."""
    prefix_caching: bool = True
    long_prefill_threshold: int = 0
    """Most tokens of long prompts in a step that has decodes, and what makes a prompt long; 0: as
    many as stretch a step by a measured part, see `engine.core.chunk_pace`."""
    predict_lengths: bool = True
    """Whether admission leaves room for the output that a tenant's requests usually have."""
    speculative_tokens: int = 0
    """Most tokens drafted by prompt lookup in a step; 0: no speculative decoding."""
    max_loras: int = 8
    """LoRA adapters that one step can use; 0: none may be loaded."""
    max_lora_rank: int = 128
    max_cpu_loras: int = 32
    """Adapters kept in memory; the least recently used one goes, unless it is pinned or in use."""
    grammar_timeout_s: float = 10.0
    """Longest time that the compilation of a grammar may take."""
    recording: bool = True
    """Whether hops and steps are recorded from the start; `SetRecording` changes it."""
    flight_path: str | None = None
    """File of the flight recorder, see `engine.wire.flight`; None: none is kept."""
    log_format: str = "text"
    """`text` or `json`: of what it writes to stderr."""
    log_level: str = "info"
