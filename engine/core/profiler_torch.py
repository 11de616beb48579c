"""Torch's profiler: records what the thread that starts it does. Imported with the first profile.

`torch.autograd.profiler` is used without the wrapper in `torch.profiler`, whose first start
imports the compiler for 1.4 s.
"""

import os
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from torch._C._autograd import (
    _add_metadata_json,  # pyright: ignore[reportPrivateUsage] - as torch.profiler does
)
from torch._C._profiler import (
    _ExperimentalConfig,  # pyright: ignore[reportPrivateUsage] - as torch.profiler does
)
from torch.autograd.profiler import profile, record_function

_SILENT = "99"
"""Else the profiler's library writes to stderr at each start and end."""
_TAIL_BYTES = 16


class TorchProfile:
    """Records from its construction to `stop`, in the thread that makes it.

    Args:
        is_cuda: Whether there are kernels to record.
        with_stacks: Record Python stacks of each operation.
        with_memory: Record what is allocated and freed.
    """

    def __init__(self, *, is_cuda: bool, with_stacks: bool, with_memory: bool) -> None:
        os.environ.setdefault("KINETO_LOG_LEVEL", _SILENT)
        # a trace alone, without what `key_averages` needs: half the time at the end
        config = None if with_stacks else _ExperimentalConfig(trace_only=True)
        self._profile: Any = profile(
            experimental_config=config,
            use_kineto=True,
            use_device="cuda" if is_cuda else None,
            with_stack=with_stacks,
            profile_memory=with_memory,
        )
        self._profile.__enter__()

    def span(self, name: str) -> AbstractContextManager[Any]:
        """Return a span around what is done inside."""
        return record_function(name)

    def note(self, key: str, json_text: str) -> None:
        """Put a value into the file, beside `traceEvents`."""
        _add_metadata_json(key, json_text)

    def stop(self) -> None:
        """Record no more; some microseconds for each event."""
        self._profile.__exit__(None, None, None)

    def save(self, path: Path) -> None:
        """Write Chrome's trace format; any thread may. Raises OSError."""
        self._profile.export_chrome_trace(str(path))
        if not path.exists():  # torch does not tell
            raise OSError("torch wrote nothing; is the disk full?")
        with path.open("rb") as file:  # torch does not tell when the disk was full
            file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
            if not file.read().rstrip().endswith(b"}"):
                raise OSError("it is incomplete; is the disk full?")
