"""Where a PEFT adapter's matrices go in a model whose linear layers are fused.

PEFT names modules as the checkpoint does (`q_proj`, `k_proj`, `v_proj`); the model multiplies with
all of them at once (`layers.0.qkv`). Parts that share their input can also share one update, with
their A matrices stacked and their B matrices on the diagonal of a larger one. That saves calls and
wastes products with zeros: the C++ kernels do not want it, torch does. Measured in whole decode
steps of a 135 M model on one CPU core, with torch: at rank 8 an adapter costs half as much joined
as apart, at rank 16 the same, at rank 64 a fifth more.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from engine.checkpoint.model_config import ModelConfig
from engine.models.parameters import Parameter

JOINED_BYTES = 512 << 10
"""Largest B of a joined update."""
_FLOAT_BYTES = 4

_MODULE = re.compile(
    r"(?:model\.language_model\.|language_model\.model\.|model\.)?"
    r"(layers\.\d+\.(?:self_attn|mlp)\.\w+)"
)
"""What precedes the layers differs between a text model and the same one inside a larger one."""


@dataclass(frozen=True, slots=True)
class LinearPart:
    """A linear layer of the checkpoint in the model's fused one."""

    parameter: str
    """`Parameter.name` of the fused layer's weight."""
    first_row: int
    num_rows: int
    num_columns: int


@dataclass(frozen=True, slots=True)
class Piece:
    """What an adapter changes in one part."""

    module: str
    """As `module_key` gives it."""
    part: LinearPart
    rank: int


@dataclass(frozen=True, slots=True)
class PlannedUpdate:
    """Pieces of one fused layer that become one update."""

    pieces: tuple[Piece, ...]

    @property
    def parameter(self) -> str:
        """Return the fused layer's name."""
        return self.pieces[0].part.parameter

    @property
    def first_row(self) -> int:
        """Return the first row of the layer's weight that changes."""
        return min(piece.part.first_row for piece in self.pieces)

    @property
    def down_shape(self) -> tuple[int, int]:
        """Return the shape of the stacked A matrices."""
        return sum(piece.rank for piece in self.pieces), self.pieces[0].part.num_columns

    @property
    def up_shape(self) -> tuple[int, int]:
        """Return the shape of the B matrix; parts in between that do not change are zero."""
        end = max(piece.part.first_row + piece.part.num_rows for piece in self.pieces)
        return end - self.first_row, self.down_shape[0]


def module_key(name: str) -> str | None:
    """Return the part of a module's name that is the same in every layout; None: no such layer."""
    found = _MODULE.fullmatch(name)
    return found.group(1) if found else None


def linear_parts(model: ModelConfig, parameters: Sequence[Parameter]) -> dict[str, LinearPart]:
    """Return every linear layer of the checkpoint's decoder layers by its `module_key`."""
    found: dict[str, LinearPart] = {}
    for parameter in parameters:
        if not parameter.is_linear:
            continue
        rows, columns = parameter.shape
        first = 0
        for source in parameter.sources:
            module = source.removesuffix(".weight")
            own = rows if len(parameter.sources) == 1 else _rows_of(model, module)
            key = module_key(module)
            if key is not None:
                found[key] = LinearPart(parameter.name, first, own, columns)
            first += own
        assert first == rows, "the sources of a parameter make up its rows"
    return found


def plan_updates(pieces: Sequence[Piece], *, joins: bool = True) -> list[PlannedUpdate]:
    """Return which pieces share an update: those of one fused layer, if that is not too large.

    Without `joins`, each has its own.
    """
    by_parameter: dict[str, list[Piece]] = {}
    for piece in pieces:
        by_parameter.setdefault(piece.part.parameter, []).append(piece)
    planned: list[PlannedUpdate] = []
    for together in by_parameter.values():
        joined = PlannedUpdate(tuple(sorted(together, key=lambda piece: piece.part.first_row)))
        rows, rank = joined.up_shape
        if joins and rows * rank * _FLOAT_BYTES <= JOINED_BYTES:
            planned.append(joined)
        else:
            planned += [PlannedUpdate((piece,)) for piece in joined.pieces]
    return planned


def _rows_of(model: ModelConfig, module: str) -> int:
    match module.rsplit(".", 1)[-1]:
        case "q_proj":
            return model.num_heads * model.head_dim
        case "k_proj" | "v_proj":
            return model.num_kv_heads * model.head_dim
        case "gate_proj" | "up_proj":
            return model.intermediate_size
        case other:
            raise AssertionError(f"{other} is not part of a fused layer")
