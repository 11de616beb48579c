"""Decides in which format each weight is kept, and says why and at which price."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Literal

from engine.checkpoint.tensors import TensorEntry
from engine.kernels.cpu.weights import Format

Asked = Literal["auto", "none", "int8", "w4"]

LARGE_BYTES = 2 << 30
"""Weights that would take more than this as bfloat16 are kept in int8 if nothing was asked."""

MEAN_KL = {Format.BF16: 0.0002, Format.W4_G32: 0.0025, Format.I8_G32: 0.0035, Format.I8_G64: 0.0060}
"""Mean Kullback-Leibler divergence of the next token's distribution, in nats, from that of float32
arithmetic on the same file; SmolLM2-135M-Instruct, 2,000 tokens, `ops/bench/accuracy.py`."""

_FOUR_BIT_PRICE = "which small models bear badly (mean KL 0.30 with Gemma 3 270M in Q4_K_M)"
"""Of `w4` asked for where the file holds finer weights; measured in the same way, 500 tokens."""
_NAMES = {Format.BF16: "none", Format.W4_G32: "w4", Format.I8_G32: "int8", Format.I8_G64: "int8"}
_FOUR_BITS = ("Q4_0", "Q4_1", "Q4_K")
_UNCHANGED_BLOCKS = ("Q4_0", "Q4_1", "Q5_0", "Q8_0")
_UNCHANGED = (*_UNCHANGED_BLOCKS, "BF16")
"""Kinds whose values all are kept to the bit where a file decides on the format."""
_PLAIN_KINDS = ("F32", "F16", "BF16")
_PLAIN_BYTES = 2
_NUM_DIMENSIONS = 2


@dataclass(frozen=True, slots=True)
class QuantizationChoice:
    """How weights are kept."""

    name: str
    """`none`, `int8`, `w4`: of most of the weights."""
    asked: Asked
    reason: str
    plain: Format
    """Of weights that are not quantized in the file, where the file decides."""

    def formats(self, kinds: Sequence[str], *, is_table: bool, is_gate_up: bool) -> list[Format]:
        """Return the format of each of the matrices that one product is made of.

        Args:
            kinds: How each is stored.
            is_table: Whether it is an embedding or a head: four bits are too few for these, if it
                is we who round.
            is_gate_up: Its matrices are interleaved, so they have one format.
        """
        found = [self._format(kind, is_table=is_table) for kind in kinds]
        if len(set(found)) > 1 and (is_gate_up or Format.BF16 in found):
            # inputs are rounded once for a product, to bfloat16 or to int8
            found = [Format.I8_G32 if is_gate_up or each is Format.BF16 else each for each in found]
        return found

    def _format(self, kind: str, *, is_table: bool) -> Format:
        match self.asked:
            case "none":
                return Format.BF16
            case "int8":
                return Format.I8_G32
            case "w4":
                return Format.I8_G32 if is_table else Format.W4_G32
            case "auto":
                return _as_stored(kind, self.plain)


def choose_quantization(asked: Asked, tensors: Iterable[TensorEntry]) -> QuantizationChoice:
    """Choose formats; every wish can be met, at a price.

    Args:
        asked: `auto`: as the file holds the weights; of a file with 16 or 32 bits, bfloat16, or
            int8 if it is large.
        tensors: Of the checkpoint.
    """
    sizes: Counter[str] = Counter()
    for tensor in tensors:
        if len(tensor.shape) == _NUM_DIMENSIONS:
            sizes[tensor.kind] += prod(tensor.shape)
    if asked != "auto":
        return _wished(asked, sizes)
    plain_bytes = _PLAIN_BYTES * sum(sizes[kind] for kind in _PLAIN_KINDS)
    plain = Format.I8_G32 if plain_bytes > LARGE_BYTES else Format.BF16
    by_format: Counter[Format] = Counter()
    for kind, size in sizes.items():
        by_format[_as_stored(kind, plain)] += size
    most = by_format.most_common(1)[0][0] if by_format else Format.BF16
    reason = _reason_of(sizes, plain, plain_bytes)
    return QuantizationChoice(_NAMES[most], asked, f"{reason}; {price(most)}", plain)


def price(format_: Format) -> str:
    """Return what is known of the loss of accuracy, for operators."""
    return (
        f"mean KL {MEAN_KL[format_]:.4f} nats from float32 on the same weights, "
        "measured with SmolLM2-135M"
    )


def _wished(asked: Asked, sizes: Counter[str]) -> QuantizationChoice:
    format_ = {"none": Format.BF16, "int8": Format.I8_G32, "w4": Format.W4_G32}[asked]
    reason = f"asked for; the file holds {_kinds(sizes)}; {price(format_)}"
    if asked == "w4" and any(kind not in _FOUR_BITS for kind in sizes):
        reason += f"; rounding to four bits comes on top, {_FOUR_BIT_PRICE}"
    return QuantizationChoice(asked, asked, reason, format_)


def _as_stored(kind: str, plain: Format) -> Format:
    if kind in _PLAIN_KINDS:
        return plain
    return Format.W4_G32 if kind in _FOUR_BITS else Format.I8_G32


def _reason_of(sizes: Counter[str], plain: Format, plain_bytes: int) -> str:
    if any(kind not in _PLAIN_KINDS for kind in sizes):
        kept = _UNCHANGED if plain is Format.BF16 else _UNCHANGED_BLOCKS
        changed = [kind for kind, _ in sizes.most_common() if kind not in kept]
        values = f"{', '.join(changed)} converted" if changed else "values unchanged"
        return f"as the file holds them ({_kinds(sizes)}), {values}"
    size = f"{plain_bytes / (1 << 30):.1f} GiB as bfloat16"
    if plain is Format.BF16:
        return f"the file holds {_kinds(sizes)}, {size}"
    return f"the file holds {_kinds(sizes)}, {size}, which is large; `none` keeps bfloat16"


def _kinds(sizes: Counter[str]) -> str:
    return ", ".join(kind for kind, _ in sizes.most_common()) or "no matrix"
