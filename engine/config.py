"""The configuration of one engine core, handed over by the launcher on an inherited descriptor."""

import msgspec


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
    """`bfloat16`, `float32`, `float16`; None: bfloat16 on CPU, else the checkpoint's."""
    max_model_len: int | None = None
    """None: the checkpoint's, capped by what the KV cache holds."""
    kv_cache_bytes: int | None = None
    """None: 512 MiB on the CPU, half of the free memory on a GPU."""
    block_size: int = 16
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 512
    """Token budget of a step."""
    num_threads: int | None = None
    heartbeat_s: float = 0.5
    outbox_limit: int = 1024
    """Messages that wait for one client; beyond, the client is cut off."""
