"""Which family of models an architecture belongs to."""

from engine.checkpoint.model_config import ModelConfig
from engine.models import gemma3, llama, phi3
from engine.models.family import ModelFamily

_FAMILIES = {
    "LlamaForCausalLM": llama.FAMILY,
    "MistralForCausalLM": llama.FAMILY,
    "Qwen2ForCausalLM": llama.FAMILY,
    "Qwen3ForCausalLM": llama.FAMILY,
    "Phi3ForCausalLM": phi3.FAMILY,
    "Gemma3ForCausalLM": gemma3.FAMILY,
}


def family_of(config: ModelConfig) -> ModelFamily:
    """Return the family of a configuration that `check_config` accepted."""
    return _FAMILIES[config.architecture]
