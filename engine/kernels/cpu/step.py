"""Writes a packed step into the structure that `qd_forward` reads."""

import ctypes
import struct
from array import array

import torch
from torch import Tensor

from engine.kernels.cpu.structs import AdapterRows, Request, Step
from engine.kernels.model import PackedStep, StepValueError

_REQUEST = struct.Struct("@PPiiii")
"""As `Request`: blocks, window blocks, number of blocks, first row, rows, start position."""
assert _REQUEST.size == ctypes.sizeof(Request)

_INT_BYTES = 4


class StepWriter:
    """Holds what a step's structure points to; one for each model, used again by each step.

    Args:
        max_positions: Longest context.
        has_window: Whether the model has sliding-window layers.
    """

    def __init__(self, max_positions: int, *, has_window: bool) -> None:
        self._max_positions = max_positions
        self._has_window = has_window
        self._kept: list[object] = []

    def write(
        self, step: PackedStep, logits: Tensor, adapters: ctypes.Array[AdapterRows] | None
    ) -> Step:
        """Return the structure; it is valid until the next call.

        Args:
            step: What to compute.
            logits: `[sampled rows, vocab]` float32, where the result goes.
            adapters: Rows that go through LoRA adapters.

        Raises:
            StepValueError: a context is too long, or a number does not fit into 32 bits.
        """
        assert logits.dtype == torch.float32, "the kernels write float32"
        assert logits.is_contiguous(), "the kernels write whole rows"
        try:
            tokens, rows = array("i", step.token_ids), array("i", step.sampled_rows)
            requests, blocks = self._requests(step)
        except (OverflowError, struct.error) as error:
            raise StepValueError(f"a number of the step is out of range: {error}") from error
        self._kept = [tokens, rows, requests, blocks, adapters]
        return Step(
            token_ids=tokens.buffer_info()[0],
            requests=ctypes.addressof(requests),
            sampled_rows=rows.buffer_info()[0],
            logits=logits.data_ptr(),
            adapters=adapters,
            num_tokens=len(tokens),
            num_requests=len(step.spans),
            num_sampled=len(rows),
            num_adapters=0 if adapters is None else len(adapters),
        )

    def _requests(self, step: PackedStep) -> "tuple[ctypes.Array[ctypes.c_char], array[int]]":
        """Return the array of `Request`, and the block tables that it points into."""
        blocks = array("i")
        tables: list[tuple[int, int, int]] = []
        for span in step.spans:
            if span.start_position + span.num_rows > self._max_positions:
                raise StepValueError(f"a context is longer than {self._max_positions} tokens")
            first = len(blocks)
            blocks.extend(span.block_table)
            length = len(span.block_table)
            tables.append((first, len(blocks), length))
            if self._has_window:
                blocks.extend(span.window_table)
                tables[-1] = (first, first + length, min(length, len(span.window_table)))
        base = blocks.buffer_info()[0]
        requests = ctypes.create_string_buffer(max(1, len(step.spans)) * _REQUEST.size)
        for at, (span, table) in enumerate(zip(step.spans, tables, strict=True)):
            first, window, length = table
            _REQUEST.pack_into(
                requests,
                at * _REQUEST.size,
                base + first * _INT_BYTES,
                base + window * _INT_BYTES if self._has_window else 0,
                length,
                span.first_row,
                span.num_rows,
                span.start_position,
            )
        return requests, blocks
