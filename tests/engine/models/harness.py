"""Runs a model step by step without a scheduler, and builds the same model in transformers."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from engine.checkpoint.checkpoint import open_checkpoint
from engine.config import EngineConfig
from engine.core.batch import ScheduledRequest
from engine.core.kv_cache import allocate_cache, plan_cache
from engine.core.runner import TorchRunner
from engine.core.step_input import pack
from engine.core.weights import WeightLoader
from engine.kernels.reference.backend import ReferenceBackend
from engine.models import llama
from engine.wire.messages import SamplingParams

GREEDY = SamplingParams(max_tokens=64, temperature=0.0)


def engine_config(path: Path, **changes: object) -> EngineConfig:
    fields: dict = {"engine_id": "e0", "epoch": 1, "model_name": "m", "clients": ()}
    return EngineConfig(model=str(path), **(fields | changes))


def make_runner(path: Path, **changes: object) -> TorchRunner:
    runner = TorchRunner(engine_config(path, **changes))
    runner.load(lambda _phase, _done, _total: None)
    return runner


def share(
    token_ids: Sequence[int],
    start: int = 0,
    *,
    blocks: Sequence[int],
    request_id: str = "r",
    sampling: SamplingParams = GREEDY,
    output_tokens: int = 0,
    banned: Sequence[int] = (),
) -> ScheduledRequest:
    return ScheduledRequest(
        request_id=request_id,
        token_ids=token_ids,
        start_position=start,
        block_table=blocks,
        samples=True,
        sampling=sampling,
        num_output_tokens=output_tokens,
        banned_token_ids=banned,
    )


class ModelHarness:
    """A loaded model whose logits of every row can be looked at."""

    def __init__(self, path: Path, dtype: str = "float32", cache_mib: int = 64) -> None:
        checkpoint = open_checkpoint(path)
        self.config = checkpoint.config
        self.block_size = 16
        device, torch_dtype = torch.device("cpu"), getattr(torch, dtype)
        self.kernels = ReferenceBackend()
        self.kernels.prepare(llama.shapes(self.config, torch_dtype, device))
        loader = WeightLoader(checkpoint, torch_dtype, device, lambda _done, _total: None)
        weights = loader.load(llama.parameters(self.config), self.kernels)
        size = plan_cache(
            engine_config(path, kv_cache_bytes=cache_mib << 20), self.config, torch_dtype, device
        )
        self.caches = allocate_cache(size, self.config, torch_dtype, device)
        self.model = llama.LlamaModel(self.config, weights, self.kernels, size.max_model_len)

    def step(self, batch: Sequence[ScheduledRequest]) -> list[Tensor]:
        """Compute one step; returns the logits of every token, request by request."""
        packed = pack(batch, self.kernels, self.block_size, torch.device("cpu"))
        counts = [len(request.token_ids) for request in batch]
        every = llama.ModelInput(
            packed.token_ids, packed.positions, packed.plan, torch.arange(sum(counts))
        )
        return list(self.model.forward(every, self.caches).split(counts))


def transformers_model(path: Path):
    """Build transformers' own model on the same weights, in float32."""
    from transformers import LlamaConfig, LlamaForCausalLM

    checkpoint = open_checkpoint(path)
    config = checkpoint.config
    model = LlamaForCausalLM(
        LlamaConfig(
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_hidden_layers=config.num_layers,
            num_attention_heads=config.num_heads,
            num_key_value_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            vocab_size=config.vocab_size,
            max_position_embeddings=config.max_position_embeddings,
            rms_norm_eps=config.rms_norm_eps,
            rope_theta=config.rope_theta,
            tie_word_embeddings=config.tie_word_embeddings,
            attn_implementation="eager",
        )
    )
    state = {name: torch.from_numpy(checkpoint.read(name)) for name in checkpoint.tensors}
    missing = model.load_state_dict(state, strict=False).missing_keys
    assert set(missing) <= {"lm_head.weight"}
    model.tie_weights()
    return model.eval()
