"""The kinds of tensors in GGUF files: how many values a block has, and how many bytes.

A table of our own, because importing the `gguf` package takes seconds.

Source:
    `ggml_type` and `type_traits` of https://github.com/ggml-org/ggml/blob/master/src/ggml.c
"""

from typing import NamedTuple


class GgmlKind(NamedTuple):
    """How the values of a tensor are stored."""

    name: str
    block_values: int
    block_bytes: int

    def row_bytes(self, num_values: int) -> int:
        """Return the size of a row, which must be whole blocks."""
        return num_values // self.block_values * self.block_bytes


KINDS = {
    0: GgmlKind("F32", 1, 4),
    1: GgmlKind("F16", 1, 2),
    2: GgmlKind("Q4_0", 32, 18),
    3: GgmlKind("Q4_1", 32, 20),
    6: GgmlKind("Q5_0", 32, 22),
    7: GgmlKind("Q5_1", 32, 24),
    8: GgmlKind("Q8_0", 32, 34),
    9: GgmlKind("Q8_1", 32, 40),
    10: GgmlKind("Q2_K", 256, 84),
    11: GgmlKind("Q3_K", 256, 110),
    12: GgmlKind("Q4_K", 256, 144),
    13: GgmlKind("Q5_K", 256, 176),
    14: GgmlKind("Q6_K", 256, 210),
    15: GgmlKind("Q8_K", 256, 292),
    16: GgmlKind("IQ2_XXS", 256, 66),
    17: GgmlKind("IQ2_XS", 256, 74),
    18: GgmlKind("IQ3_XXS", 256, 98),
    19: GgmlKind("IQ1_S", 256, 50),
    20: GgmlKind("IQ4_NL", 32, 18),
    21: GgmlKind("IQ3_S", 256, 110),
    22: GgmlKind("IQ2_S", 256, 82),
    23: GgmlKind("IQ4_XS", 256, 136),
    24: GgmlKind("I8", 1, 1),
    25: GgmlKind("I16", 1, 2),
    26: GgmlKind("I32", 1, 4),
    27: GgmlKind("I64", 1, 8),
    28: GgmlKind("F64", 1, 8),
    29: GgmlKind("IQ1_M", 256, 56),
    30: GgmlKind("BF16", 1, 2),
    34: GgmlKind("TQ1_0", 256, 54),
    35: GgmlKind("TQ2_0", 256, 66),
    39: GgmlKind("MXFP4", 32, 17),
    40: GgmlKind("NVFP4", 64, 36),
    41: GgmlKind("Q1_0", 128, 18),
}
"""By their number in files."""
TYPE_IDS = {kind.name: type_id for type_id, kind in KINDS.items()}
