"""What an engine says of itself when it can serve."""

from engine.config import EngineConfig
from engine.core.batch import ModelFacts
from engine.core.loop import EngineCore
from engine.wire.messages import EngineReady, StartPhase


def ready_message(
    config: EngineConfig, facts: ModelFacts, core: EngineCore, phases: tuple[StartPhase, ...] = ()
) -> EngineReady:
    """Return the message: what was configured, what was found, and what is in memory."""
    return EngineReady(
        model=config.model_name,
        architecture=facts.architecture,
        max_model_len=core.scheduler.max_len,
        num_blocks=facts.num_blocks,
        block_size=config.block_size,
        vocab_size=facts.vocab_size,
        dtype=facts.dtype,
        device=facts.device,
        kernel_backend=facts.kernel_backend,
        weights_bytes=facts.weights_bytes,
        kv_cache_bytes=facts.kv_cache_bytes,
        resident_bytes=core.resident_bytes(),
        phases=phases,
        dtype_reason=facts.dtype_reason,
        max_loras=config.max_loras,
        max_lora_rank=config.max_lora_rank if config.max_loras else 0,
        sliding_window=facts.sliding_window,
        num_window_blocks=facts.num_window_blocks,
        num_parameters=facts.num_parameters,
        peak_flops=facts.peak_flops,
        peak_bytes_per_s=facts.peak_bytes_per_s,
        num_threads=facts.num_threads,
        kernel_path=facts.kernel_path,
        kernel_reason=facts.kernel_reason,
        quantization=facts.quantization,
        quantization_reason=facts.quantization_reason,
        kv_cache_dtype=facts.kv_cache_dtype,
        weight_cache=facts.weight_cache,
    )
