"""What each format of weights and of the KV cache costs in accuracy, against float32.

Every token of a text is predicted from all that precede it, by the reference kernels in float32
on the values that the file holds, and by the CPU kernels in each format. Printed are the
Kullback-Leibler divergence between both distributions in nats (its mean and its largest over the
tokens), how often both have the same most likely token, and the perplexity of the text. Then the
text is cut into prompts, which both continue greedily: printed are how many of the continuations
are the same to their end, and how much of them is, on average, before they part.

    python ops/bench/accuracy.py MODEL
    python ops/bench/accuracy.py MODEL --reference ORIGINAL --variants auto w4 --tokens 500
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import torch
from torch import Tensor

from engine.checkpoint.checkpoint import open_checkpoint
from engine.config import EngineConfig
from engine.core.kernel_choice import choose_kernels
from engine.core.kv_cache import plan_cache
from engine.core.model_source import CpuSource, make_source
from engine.kernels.backend import Span
from engine.kernels.cpu.quantization import QuantizationChoice, choose_quantization
from engine.kernels.cpu.weights import Format
from engine.kernels.model import LoadedModel, PackedStep

TEXT = Path(__file__).with_name("accuracy.txt")
"""About 2,000 tokens, written for this purpose: no model has seen it."""
STEP_TOKENS = 250
"""Predicted at once: bounds the memory that logits need."""
_BLOCK_SIZE = 16
PROMPT_TOKENS, ANSWER_TOKENS = 48, 64


@dataclass(frozen=True, slots=True)
class Variant:
    """What is compared with the reference."""

    name: str
    quantization: str = "auto"
    kv_cache_dtype: str = "bfloat16"
    kernels: str = "cpu"
    int8: Format = Format.I8_G32
    """The format that stands for int8."""


VARIANTS = {
    variant.name: variant
    for variant in (
        Variant("auto"),
        Variant("auto, int8 KV", kv_cache_dtype="int8"),
        Variant("w4", "w4"),
        Variant("int8 g32", "int8"),
        Variant("int8 g64", "int8", int8=Format.I8_G64),
        Variant("bf16", "none"),
        Variant("bf16, int8 KV", "none", kv_cache_dtype="int8"),
        Variant("torch bf16", kernels="reference"),
    )
}


@dataclass(frozen=True, slots=True)
class Accuracy:
    """How far predictions are from the reference's."""

    mean_kl: float
    max_kl: float
    top1: float
    """Share of the tokens with the same most likely next one."""
    perplexity: float


@dataclass(frozen=True, slots=True)
class Likeness:
    """How like two lists of greedy continuations are."""

    same: int
    """Continuations that are the same to the end."""
    of: int
    share: float
    """Of their tokens, how many come before the first that differs; the average."""


@dataclass(frozen=True, slots=True)
class WideInt8(QuantizationChoice):
    """int8 with a scale for each 64 inputs, which no wish of an operator gives."""

    def formats(self, kinds: Sequence[str], *, is_table: bool, is_gate_up: bool) -> list[Format]:
        """Return the one format."""
        return [Format.I8_G64] * len(kinds)


class Predictor:
    """A loaded model that predicts a text, step by step.

    Args:
        path: The checkpoint.
        num_tokens: Longest text.
        variant: How it is computed; None: in float32 by the reference kernels.
    """

    def __init__(self, path: Path, num_tokens: int, variant: Variant | None = None) -> None:
        # the step that is padded to whole tiles of the reference kernels has some more rows
        blocks = -(-num_tokens // _BLOCK_SIZE) + 1
        config = _config(path, num_tokens, variant)
        checkpoint = open_checkpoint(path)
        device = torch.device("cpu")
        choice = choose_kernels(config, device, checkpoint.config.dtype)
        source = make_source(config, choice, checkpoint, device)
        if variant is not None and variant.int8 is Format.I8_G64:
            assert isinstance(source, CpuSource), "int8 is of the CPU kernels"
            wide = choose_quantization("int8", checkpoint.tensors.values())
            source._quantization = WideInt8(wide.name, wide.asked, wide.reason, wide.plain)
        source.tune(checkpoint)
        size = plan_cache(config, checkpoint.config, source.block_bytes, device)
        self.model: LoadedModel = source.load(checkpoint, size, lambda *_: None)
        self._table = list(range(blocks))

    @torch.inference_mode()
    def logits(self, token_ids: Sequence[int]) -> Iterator[Tensor]:
        """Yield the scores of what follows each token, `[tokens, vocab]`, step by step."""
        for start in range(0, len(token_ids), STEP_TOKENS):
            step = list(token_ids[start : start + STEP_TOKENS])
            rows = range(len(step))
            span = Span(0, len(step), start, self._table, self._table)
            yield self.model.forward(PackedStep(step, [span], rows), None)

    @torch.inference_mode()
    def continuation(self, prompt: Sequence[int], num_tokens: int) -> list[int]:
        """Return the most likely tokens that follow, one after the other."""
        found: list[int] = []
        step, start = list(prompt), 0
        while len(found) < num_tokens:
            span = Span(0, len(step), start, self._table, self._table)
            packed = PackedStep(step, [span], [len(step) - 1])
            start += len(step)
            step = [int(self.model.forward(packed, None)[0].argmax())]
            found += step
        return found


def logprobs_of(predictor: Predictor, token_ids: Sequence[int]) -> list[Tensor]:
    """Return the log probabilities of what follows each token, step by step."""
    return [torch.log_softmax(logits, dim=-1) for logits in predictor.logits(token_ids)]


def accuracy_of(
    predictor: Predictor, token_ids: Sequence[int], reference: Sequence[Tensor]
) -> Accuracy:
    """Compare a model with the reference on one text."""
    divergences: list[Tensor] = []
    agreed, losses, at = 0, 0.0, 0
    for logits, wanted in zip(predictor.logits(token_ids), reference, strict=True):
        found = torch.log_softmax(logits.float(), dim=-1)
        divergences.append((wanted.exp() * (wanted - found)).sum(dim=-1))
        agreed += int((wanted.argmax(dim=-1) == found.argmax(dim=-1)).sum())
        losses += loss_of(found, token_ids[at + 1 : at + 1 + len(found)])
        at += len(found)
    every = torch.cat(divergences)
    return Accuracy(
        mean_kl=every.mean().item(),
        max_kl=every.max().item(),
        top1=agreed / at,
        perplexity=torch.tensor(losses / (at - 1)).exp().item(),
    )


def loss_of(logprobs: Tensor, targets: Sequence[int]) -> float:
    """Return how unlikely the tokens are that follow; the last one may have none."""
    index = torch.tensor(targets, dtype=torch.int64)
    return -logprobs[: len(targets)].gather(1, index[:, None]).sum().item()


def perplexity_of(logprobs: Sequence[Tensor], token_ids: Sequence[int]) -> float:
    """Return the perplexity of a text with such predictions, step by step."""
    loss, at = 0.0, 0
    for step in logprobs:
        loss += loss_of(step, token_ids[at + 1 : at + 1 + len(step)])
        at += len(step)
    return torch.tensor(loss / (at - 1)).exp().item()


def prompts_of(token_ids: Sequence[int]) -> list[Sequence[int]]:
    """Cut a text into prompts of `PROMPT_TOKENS`; what is left at its end is none."""
    starts = range(0, len(token_ids) - PROMPT_TOKENS + 1, PROMPT_TOKENS)
    return [token_ids[start : start + PROMPT_TOKENS] for start in starts]


def continuations_of(predictor: Predictor, prompts: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return the greedy continuation of each prompt."""
    return [predictor.continuation(prompt, ANSWER_TOKENS) for prompt in prompts]


def likeness_of(found: Sequence[Sequence[int]], wanted: Sequence[Sequence[int]]) -> Likeness:
    """Compare continuations with the reference's."""
    shares = [_common(one, other) / len(other) for one, other in zip(found, wanted, strict=True)]
    return Likeness(shares.count(1.0), len(shares), sum(shares) / len(shares))


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    pairs = enumerate(zip(one, other, strict=True))
    return next((at for at, (a, b) in pairs if a != b), len(one))


def text_tokens(path: Path, num_tokens: int, text: Path = TEXT) -> list[int]:
    """Return the first tokens of the text, as the model's tokenizer cuts it."""
    return open_checkpoint(path).tokenizer().encode(text.read_text()).ids[:num_tokens]


def _config(path: Path, num_tokens: int, variant: Variant | None) -> EngineConfig:
    config = EngineConfig(
        engine_id="accuracy",
        epoch=1,
        model=str(path),
        model_name="accuracy",
        clients=(),
        dtype="float32",
        kernels="reference",
        block_size=_BLOCK_SIZE,
        max_model_len=num_tokens,
        kv_cache_bytes=1 << 30,
        max_num_batched_tokens=STEP_TOKENS,
    )
    if variant is None:
        return config
    if variant.kernels == "reference":
        return msgspec.structs.replace(config, dtype="bfloat16")
    return msgspec.structs.replace(
        config,
        dtype=None,
        kernels=variant.kernels,
        quantization=variant.quantization,
        kv_cache_dtype=variant.kv_cache_dtype,
    )


def _print(name: str, found: Accuracy, texts: Likeness, reference: float) -> None:
    print(
        f"{name:16} {found.mean_kl:9.5f} {found.max_kl:8.4f} {100 * found.top1:6.1f} % "
        f"{found.perplexity:8.3f} ({found.perplexity - reference:+.3f}) "
        f"{texts.same:4} of {texts.of} {100 * texts.share:6.1f} %",
        flush=True,
    )


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path, help="a .gguf file or a Hugging Face directory")
    parser.add_argument("--reference", type=Path, help="other weights of the same model")
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--tokens", type=int, default=2000)
    options = parser.parse_args()
    token_ids = text_tokens(options.model, options.tokens)
    prompts = prompts_of(token_ids)
    exact = Predictor(options.reference or options.model, len(token_ids))
    logprobs = logprobs_of(exact, token_ids)
    texts = continuations_of(exact, prompts)
    perplexity = perplexity_of(logprobs, token_ids)
    print(f"{len(token_ids)} tokens, perplexity in float32 {perplexity:.3f}")
    print(f"{'':16} {'mean KL':>9} {'max KL':>8} {'top-1':>8} {'perplexity':>17} {'same text':>10}")
    for name in options.variants:
        predictor = Predictor(options.model, len(token_ids), VARIANTS[name])
        accuracy = accuracy_of(predictor, token_ids, logprobs)
        likeness = likeness_of(continuations_of(predictor, prompts), texts)
        _print(name, accuracy, likeness, perplexity)


if __name__ == "__main__":
    main()
