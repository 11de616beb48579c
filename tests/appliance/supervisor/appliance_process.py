"""`serve` with fake engines: `python -m ... MODEL STATE_DIR PORT ADMIN_PORT DRAIN_S`."""

import sys
from functools import partial
from pathlib import Path

from appliance.config.settings import Settings
from appliance.supervisor import plans
from appliance.supervisor.managed_engine import EnginePlan
from appliance.supervisor.serve import serve


def main() -> int:
    model, state_dir, port, admin_port, drain_s = sys.argv[1:]
    plans.EnginePlan = partial(  # type: ignore[misc,assignment]
        EnginePlan, module="tests.appliance.supervisor.fake_engine_process"
    )
    settings = Settings(
        model=model,
        state_dir=Path(state_dir),
        port=int(port),
        admin_port=int(admin_port),
        drain_s=float(drain_s),
    )
    return serve(settings, {"port": "--port"})


if __name__ == "__main__":
    sys.exit(main())
