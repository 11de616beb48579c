"""The options of `LLM` as the plan of its engines."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from engine.client.factory import OfflinePlan
from engine.config import EngineConfig

_OURS = frozenset({"engine_id", "epoch", "model", "model_name", "clients", "dtype", "heartbeat_s"})
OPTIONS = tuple(name for name in EngineConfig.__struct_fields__ if name not in _OURS)
"""Fields of `EngineConfig` that users may set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What `LLM` and `AsyncLLM` are made with, apart from the fields of `EngineConfig`."""

    num_engines: int = 1
    dtype: str | None = None
    start_timeout_s: float = 600.0
    log_dir: Path | None = None
    module: str = "engine"

    def plan(self, model: str | Path, options: Mapping[str, Any]) -> OfflinePlan:
        """Return the plan of the engines.

        Raises:
            TypeError: an option that does not exist, or a value of another type.
        """
        path = Path(model).expanduser().absolute()
        fields = {
            **_known(options),
            "engine_id": "e0",
            "epoch": 1,
            "model": str(path),
            "model_name": path.stem if path.is_file() else path.name,
            "clients": (),
            "dtype": self.dtype,
        }
        try:
            config = msgspec.convert(fields, EngineConfig)
        except msgspec.ValidationError as error:
            raise TypeError(f"engine options: {error}") from error
        return OfflinePlan(
            config=config,
            num_engines=self.num_engines,
            start_timeout_s=self.start_timeout_s,
            log_dir=self.log_dir,
            module=self.module,
        )


def _known(options: Mapping[str, Any]) -> Mapping[str, Any]:
    for name in options:
        if name not in OPTIONS:
            near = difflib.get_close_matches(name, OPTIONS, 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise TypeError(f"there is no engine option {name!r}{hint}")
    return options
