"""Metrics of engine cores, from what they last said of themselves."""

from appliance.telemetry.metric import Metric
from engine.wire.stats import AGE_EDGES, BATCH_EDGES, STEP_EDGES

ENGINE_STATE = Metric(
    "quarterdeck_engine_state",
    "gauge",
    "1 for the state that the engine is in.",
    ("engine", "state"),
)
ENGINE_INFO = Metric(
    "quarterdeck_engine_info",
    "gauge",
    "1, with what the engine serves and runs on: join it to the engine's other metrics.",
    (
        "engine",
        "model",
        "device",
        "dtype",
        "kernel_backend",
        "kernel_path",
        "quantization",
        "kv_cache_dtype",
        "threads",
    ),
)
ENGINE_RESTARTS = Metric(
    "quarterdeck_engine_restarts_total", "counter", "Restarts of an engine.", ("engine",)
)
HEARTBEAT_AGE = Metric(
    "quarterdeck_engine_heartbeat_age_seconds",
    "gauge",
    "Since the last tick of the engine's loop.",
    ("engine",),
)
ENGINE_RUNNING = Metric(
    "quarterdeck_engine_running_requests", "gauge", "Requests in the batch.", ("engine",)
)
ENGINE_WAITING = Metric(
    "quarterdeck_engine_waiting_requests", "gauge", "Requests without KV blocks.", ("engine",)
)
KV_USED_RATIO = Metric(
    "quarterdeck_kv_cache_used_ratio", "gauge", "Share of KV blocks in use.", ("engine",)
)
ENGINE_RESIDENT = Metric(
    "quarterdeck_engine_resident_bytes", "gauge", "Memory of the engine.", ("engine",)
)
ENGINE_STEPS = Metric("quarterdeck_engine_steps_total", "counter", "Scheduler steps.", ("engine",))
ENGINE_STEP_SECONDS = Metric(
    "quarterdeck_engine_step_seconds_total", "counter", "Time inside steps.", ("engine",)
)
ENGINE_PREEMPTIONS = Metric(
    "quarterdeck_engine_preemptions_total", "counter", "Preempted requests.", ("engine",)
)
ENGINE_PROMPT_TOKENS = Metric(
    "quarterdeck_engine_prompt_tokens_total", "counter", "Prompt tokens computed.", ("engine",)
)
ENGINE_GENERATION_TOKENS = Metric(
    "quarterdeck_engine_generation_tokens_total", "counter", "Tokens generated.", ("engine",)
)
ENGINE_PREFIX_QUERIED = Metric(
    "quarterdeck_engine_prefix_queried_tokens_total",
    "counter",
    "Prompt tokens looked up in the prefix cache.",
    ("engine",),
)
ENGINE_CACHED_TOKENS = Metric(
    "quarterdeck_engine_prefix_cached_tokens_total",
    "counter",
    "Prompt tokens that the prefix cache had.",
    ("engine",),
)
ENGINE_CACHED_BLOCKS = Metric(
    "quarterdeck_engine_prefix_cached_blocks",
    "gauge",
    "Free KV blocks whose content may be reused.",
    ("engine",),
)
ENGINE_EVICTED_BLOCKS = Metric(
    "quarterdeck_engine_prefix_evicted_blocks_total",
    "counter",
    "Cached KV blocks given to something else.",
    ("engine",),
)
ENGINE_DRAFTED_TOKENS = Metric(
    "quarterdeck_engine_drafted_tokens_total",
    "counter",
    "Tokens guessed by speculative decoding.",
    ("engine",),
)
ENGINE_ACCEPTED_TOKENS = Metric(
    "quarterdeck_engine_accepted_tokens_total", "counter", "Guesses that were right.", ("engine",)
)
ENGINE_GRAMMARS = Metric(
    "quarterdeck_engine_grammars_total",
    "counter",
    "Grammars by outcome: compiled, refused.",
    ("engine", "outcome"),
)
ENGINE_ADAPTERS = Metric(
    "quarterdeck_engine_adapters",
    "gauge",
    "LoRA adapters by place: loaded, active (in a slot).",
    ("engine", "place"),
)
ENGINE_LENGTH_PREDICTIONS = Metric(
    "quarterdeck_engine_length_predictions_total",
    "counter",
    "Ended requests whose output length had been predicted.",
    ("engine",),
)
ENGINE_LENGTH_ERROR = Metric(
    "quarterdeck_engine_length_error_tokens_total",
    "counter",
    "Sum of the absolute errors of these predictions.",
    ("engine",),
)
ENGINE_STEP_PARTS = Metric(
    "quarterdeck_engine_step_part_seconds_total",
    "counter",
    "Time inside steps by part: schedule, build, forward, sample, send.",
    ("engine", "part"),
)
ENGINE_STEP_DURATION = Metric(
    "quarterdeck_engine_step_duration_seconds",
    "histogram",
    "Duration of scheduler steps.",
    ("engine",),
    STEP_EDGES,
)
ENGINE_BATCH = Metric(
    "quarterdeck_engine_batch_requests",
    "histogram",
    "Requests in a step.",
    ("engine",),
    BATCH_EDGES,
)
ENGINE_BATCH_LIMIT = Metric(
    "quarterdeck_engine_batch_limit", "gauge", "Most requests that a step may have.", ("engine",)
)
ENGINE_ROWS = Metric(
    "quarterdeck_engine_rows_total", "counter", "Rows computed by forward passes.", ("engine",)
)
ENGINE_PADDING_ROWS = Metric(
    "quarterdeck_engine_padding_rows_total",
    "counter",
    "Rows of these that only fill a tile.",
    ("engine",),
)
ENGINE_FLOPS = Metric(
    "quarterdeck_engine_flops_total",
    "counter",
    "Floating point operations of the model, estimated.",
    ("engine",),
)
ENGINE_BYTES = Metric(
    "quarterdeck_engine_bytes_moved_total",
    "counter",
    "Bytes of weights and KV that steps read, estimated.",
    ("engine",),
)
ENGINE_PEAK_FLOPS = Metric(
    "quarterdeck_engine_peak_flops",
    "gauge",
    "Operations per second that the device reached when it was measured at the start.",
    ("engine",),
)
ENGINE_PEAK_BYTES = Metric(
    "quarterdeck_engine_peak_bytes_per_second",
    "gauge",
    "Memory read per second, measured at the start.",
    ("engine",),
)
ENGINE_KV_BLOCKS = Metric(
    "quarterdeck_engine_kv_blocks", "gauge", "KV blocks of the engine.", ("engine",)
)
ENGINE_KV_RESIDENCE = Metric(
    "quarterdeck_engine_kv_residence_seconds",
    "histogram",
    "How long KV blocks were in use when they were freed.",
    ("engine",),
    AGE_EDGES,
)
ENGINE_EVICTION_AGE = Metric(
    "quarterdeck_engine_eviction_age_seconds",
    "histogram",
    "How long evicted cached blocks had not been used.",
    ("engine",),
    AGE_EDGES,
)
ENGINE_SLEEP_LEVEL = Metric(
    "quarterdeck_engine_sleep_level", "gauge", "0 awake, 1 or 2 asleep.", ("engine",)
)
ENGINE_START_SECONDS = Metric(
    "quarterdeck_engine_start_seconds",
    "gauge",
    "Phases of the engine's last start.",
    ("engine", "phase"),
)
ENGINE_CUT_OFF = Metric(
    "quarterdeck_engine_clients_cut_off_total",
    "counter",
    "Clients given up because they did not read.",
    ("engine",),
)
CACHE_CONFIG = Metric(
    "quarterdeck_cache_config_info",
    "gauge",
    "1, with the size of the KV cache, for the Kubernetes inference gateway.",
    ("engine", "block_size", "num_gpu_blocks"),
)
LORA_INFO = Metric(
    "quarterdeck_lora_requests_info",
    "gauge",
    "Unix time of the report, with the adapters in use, for the Kubernetes inference gateway.",
    ("engine", "max_lora", "running_lora_adapters", "waiting_lora_adapters"),
)
