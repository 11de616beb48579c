"""Which number format the weights and the KV cache are kept in."""

from dataclasses import dataclass

import torch

_DTYPES = {
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
    "float16": torch.float16,
}


class UnknownDtypeError(ValueError):
    """The asked dtype is none of the supported names."""


@dataclass(frozen=True, slots=True)
class DtypeChoice:
    """A dtype, and why it is not the expected one."""

    dtype: torch.dtype
    reason: str | None = None
    """None: it is what was asked for, what the checkpoint says, or the device's default."""

    @property
    def name(self) -> str:
        """Return the name as in the configuration, `bfloat16`."""
        return dtype_name(self.dtype)


def dtype_name(dtype: torch.dtype) -> str:
    """Return the name without torch's prefix."""
    return str(dtype).removeprefix("torch.")


def choose_dtype(asked: str | None, device: torch.device, saved: str | None) -> DtypeChoice:
    """Choose what was asked for, else the checkpoint's dtype, else bfloat16.

    What the device cannot do is replaced by what it can, with the reason; what it only does slowly
    is replaced only where nobody asked for it.

    Args:
        asked: From the configuration.
        device: Where the model runs.
        saved: The dtype that the checkpoint names, if it does.

    Raises:
        UnknownDtypeError: `asked` is not a supported name.
    """
    if asked is not None and asked not in _DTYPES:
        raise UnknownDtypeError(f"dtype {asked!r} is unknown; known: {', '.join(_DTYPES)}")
    if device.type == "cpu":
        return _on_cpu(asked, saved)
    wanted = _DTYPES[asked] if asked else _DTYPES.get(saved or "", torch.bfloat16)
    if wanted is torch.bfloat16 and not torch.cuda.is_bf16_supported():
        return DtypeChoice(torch.float16, "this GPU has no bfloat16")
    return DtypeChoice(wanted)


def _on_cpu(asked: str | None, saved: str | None) -> DtypeChoice:
    if asked:
        return DtypeChoice(_DTYPES[asked])
    if saved == "float32":
        return DtypeChoice(torch.float32)
    if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return DtypeChoice(torch.float32, "this CPU has no fast bfloat16 products")
    if saved == "float16":
        reason = "the checkpoint is float16, whose products are slow on a CPU"
        return DtypeChoice(torch.bfloat16, reason)
    return DtypeChoice(torch.bfloat16)
