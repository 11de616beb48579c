"""What each entry point loads; a static graph misses imports inside functions."""

import resource
import subprocess
import sys

import pytest

pytestmark = pytest.mark.process

HEAVY = ("torch", "transformers", "numpy")
COMMAND_LINE = (*HEAVY, "fastapi", "starlette", "uvicorn", "textual", "httpx", "pydantic", "zmq")
TYPERS_OWN = {"pydantic"}
"""Recent ones convert options with it; `--help` of the whole does without."""
DASHBOARD = ("torch", "transformers", "zmq", "fastapi", "engine", "appliance.gateway")


def loaded_by(statement: str) -> set[str]:
    """Return the modules that a fresh process holds after `statement`."""
    script = f"{statement}\nimport sys\nprint('\\n'.join(sys.modules), file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    return set(done.stderr.split())


@pytest.mark.parametrize(
    ("module", "forbidden"),
    [
        ("appliance.cli.main", COMMAND_LINE),
        ("appliance.gateway.__main__", (*HEAVY, "opentelemetry.sdk", "opentelemetry.exporter")),
        ("appliance.supervisor.serve", (*HEAVY, "fastapi", "starlette", "textual")),
        ("appliance.supervisor.instance", HEAVY),
        ("appliance.supervisor.admin.app", HEAVY),
        ("appliance.telemetry.hub", HEAVY),
        ("engine.wire.codec", (*HEAVY, "zmq")),
        ("engine.client.async_mp", HEAVY),
        ("dashboard.__main__", DASHBOARD),
        ("dashboard.app", DASHBOARD),
    ],
)
def test_an_entry_point_loads_nothing_that_it_does_not_need(
    module: str, forbidden: tuple[str, ...]
):
    loaded = loaded_by(f"import {module}")

    assert module in loaded
    assert sorted(loaded.intersection(forbidden)) == []


@pytest.mark.parametrize("arguments", [["--help"], ["serve", "--help"], ["keys", "create", "-h"]])
def test_help_loads_nothing_heavy(arguments: list[str]):
    loaded = loaded_by(
        "import sys\n"
        f"sys.argv = ['quarterdeck', *{arguments!r}]\n"
        "from appliance.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit as left:\n    assert left.code in (0, None)"
    )

    assert sorted(loaded.intersection({*COMMAND_LINE, "rich"}) - TYPERS_OWN) == []


def test_help_answers_at_once():
    """Measured in processor time: what else the machine does shall not decide."""
    command = [sys.executable, "-c", "from appliance.cli.main import main; main()", "--help"]
    times_s: list[float] = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(command, capture_output=True, check=True, timeout=30)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times_s.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)

    assert b"serve" in done.stdout
    assert min(times_s) < 0.3
