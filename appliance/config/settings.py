"""Every setting of the appliance, its default and its bounds. Loading is in `sources`."""

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from engine.config import MAX_THREADS

DEFAULT_MODEL = "smollm2"
_DEVICE = r"^(cpu|cuda(:\d+)?)$"
_DTYPE = r"^(bfloat16|float16|float32)$"
_KERNELS = r"^(auto|reference|cpu(:[a-z0-9-]+)?)$"
Quantization = Literal["auto", "none", "int8", "w4"]
KvCacheDtype = Literal["auto", "bfloat16", "int8"]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


class EngineSettings(_Strict):
    """One engine core. Fields left out take the top-level setting of the same name."""

    model: str | None = None
    device: str | None = Field(None, pattern=_DEVICE)
    dtype: str | None = Field(None, pattern=_DTYPE)
    max_model_len: int | None = Field(None, ge=16)
    kv_cache_bytes: int | None = Field(None, ge=1 << 20)
    served_model_name: list[str] = Field(default_factory=list)
    quantization: Quantization | None = None
    kv_cache_dtype: KvCacheDtype | None = None
    kernels: str | None = Field(None, pattern=_KERNELS)
    num_threads: int | None = Field(None, ge=1, le=MAX_THREADS)


class SloSettings(_Strict):
    """What is promised to clients. A share is of requests, over the window of 30 days."""

    availability: float = Field(0.999, gt=0, lt=1)
    """Accepted requests that neither failed nor were refused for want of capacity."""
    ttft_ms: float = Field(2000, gt=0)
    ttft_share: float = Field(0.95, gt=0, lt=1)
    """Of requests whose first token comes within `ttft_ms`."""
    tpot_ms: float = Field(200, gt=0)
    tpot_share: float = Field(0.95, gt=0, lt=1)
    """Of finished requests whose mean time per output token is at most `tpot_ms`."""


class Settings(_Strict):
    """The whole configuration of one appliance."""

    # model and engines
    model: str = DEFAULT_MODEL
    """Model pack, local directory, `.gguf` file, or hub id."""
    served_model_name: list[str] = Field(default_factory=list)
    engines: list[EngineSettings] = Field(default_factory=list)
    """`[[engines]]`; empty means `num_engines` alike."""
    num_engines: int = Field(1, ge=1, le=64)
    """`--engines N`."""
    device: str = Field("cpu", pattern=_DEVICE)
    dtype: str | None = Field(None, pattern=_DTYPE)
    max_model_len: int | None = Field(None, ge=16)
    kv_cache_bytes: int | None = Field(None, ge=1 << 20)
    max_num_seqs: int = Field(64, ge=1)
    max_num_batched_tokens: int = Field(512, ge=1)
    num_threads: int | None = Field(None, ge=1, le=MAX_THREADS)
    revision: str | None = None
    """Of a hub model: branch, tag or commit."""

    # scheduling
    policy: str = "fcfs"
    """`fcfs`, `priority`, `fair`, or a policy that an installed package brings."""
    reserved_seqs: int = Field(0, ge=0)
    """Of `max_num_seqs`, places for requests of high (negative) priority."""
    tenant_weights: dict[str, float] = Field(default_factory=dict)
    """For `fair`: key id to share; 1 when not named."""
    prefix_caching: bool = True
    long_prefill_threshold: int = Field(0, ge=0)
    """Most tokens of long prompts in a step that has decodes; 0: measured."""
    predict_lengths: bool = True
    speculative_tokens: int = Field(0, ge=0, le=16)
    """Most tokens guessed by prompt lookup in a step; 0 is off."""

    # LoRA adapters
    adapter_root: list[Path] = Field(default_factory=list)
    """Directories that adapters may be loaded from; none: no adapters."""
    max_loras: int = Field(8, ge=0, le=64)
    """Adapters that one step can use."""
    max_lora_rank: int = Field(128, ge=1, le=128)
    max_cpu_loras: int = Field(32, ge=1)

    # data plane
    host: str = "127.0.0.1"
    port: int = Field(8000, ge=0, le=65535)
    gateways: int = Field(1, ge=1, le=64)
    on_asleep: Literal["wake", "reject"] = "wake"
    strict_parameters: bool = False
    cors_origin: list[str] = Field(default_factory=list)
    max_queued: int = Field(256, ge=1)
    requests_per_minute: float = Field(6000, gt=0)
    tokens_per_minute: float = Field(4_000_000, gt=0)
    hold_s: float = Field(120, gt=0)

    # control plane
    admin_host: str = "127.0.0.1"
    admin_port: int = Field(8001, ge=0, le=65535)

    # keys and transport security
    no_auth: bool = False
    api_key: list[str] = Field(default_factory=list, repr=False)
    api_key_file: Path | None = None
    admin_key: list[str] = Field(default_factory=list, repr=False)
    admin_key_file: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None

    # files
    state_dir: Path | None = None
    model_dir: Path | None = None

    # telemetry
    otlp_endpoint: str | None = None
    trace_ratio: float = Field(1.0, ge=0, le=1)
    """Share of traces that are exported; the local store keeps all within its bounds."""
    trace_store_bytes: int = Field(256 << 20, ge=1 << 20)
    trace_store_hours: float = Field(24, gt=0)
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    otlp_protocol: Literal["http/protobuf", "grpc"] = "http/protobuf"
    trace_slowest_per_minute: int = Field(5, ge=0, le=1000)
    """Slowest requests of each minute whose traces are exported whatever the ratio."""
    trace_content: bool = False
    """Record prompts and outputs of requests whose key allows it (`keys create
    --allow-content`)."""
    log_format: Literal["text", "json"] = "text"
    """Of stderr; the log file in the state directory is JSON lines always."""
    profile_store_bytes: int = Field(1 << 30, ge=1 << 20)
    slo: SloSettings = SloSettings.model_validate({})
    """`[slo]`, or `ttft_ms=500,availability=0.99` on one line."""

    # supervision
    drain_s: float = Field(30, ge=0)
    heartbeat_s: float = Field(0.5, gt=0)
    hang_s: float = Field(10, gt=0)
    """No tick of an engine's loop for this long means that it hangs."""
    start_timeout_s: float = Field(600, gt=0)
    """Longest time without progress while an engine starts."""

    # appended: names under which the control plane may be addressed beyond loopback
    allowed_host: list[str] = Field(default_factory=list)
    """Host names (without port) that the control plane answers to; IP addresses always may."""

    # appended: how weights and the KV cache are kept, and what computes
    quantization: Quantization = "auto"
    """`auto`: as the file holds the weights; those of a large file without quantization in int8."""
    kv_cache_dtype: KvCacheDtype = "auto"
    kernels: str = Field("auto", pattern=_KERNELS)
    """`cpu:NAME` forces an instruction set; `quarterdeck doctor` lists those of this machine."""
    weight_cache: Path | Literal["off"] | None = None
    """Where weights are kept in the layout of the CPU kernels; None: the platform's directory."""
    weight_cache_bytes: int = Field(16 << 30, ge=0)
    """Most that it may hold; the least recently used go."""
