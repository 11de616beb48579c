"""The measurement of what telemetry costs runs, ends by itself and says what it is meant to."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

BENCH = Path(__file__).parents[2] / "ops" / "bench"


def test_a_pair_of_windows_with_everything_exported(tiny_model_path: Path):
    done = subprocess.run(
        [
            sys.executable, str(BENCH / "telemetry_overhead.py"),
            "--model", str(tiny_model_path), "--serve", "--dtype float32 --drain-s 2",
            "--scenario", "all", "--streams", "2", "--pairs", "1", "--seconds", "1",
            "--settle", "0.6", "--warm-up", "0.5", "--output-tokens", "32", "-o", "json",
        ],
        capture_output=True,
        text=True,
        timeout=80,
        check=False,
    )  # fmt: skip

    assert done.returncode in {0, 1}, done.stderr
    assert done.stdout, done.stderr
    (result,) = json.loads(done.stdout)
    assert (result["scenario"], result["streams"], result["pairs"]) == ("all", 2, 1)
    assert result["failures"] == []
    assert result["rate_on"] > 0
    assert result["rate_off"] > 0
    assert 0 < result["engine_cpu_ms_per_token"] < result["appliance_cpu_ms_per_token"]
    assert result["spans_per_s"] > 0
    assert result["lag_p99_s"] is not None
    assert len(result["verdicts"]) == 5
    assert (done.returncode == 0) == all(each["passed"] for each in result["verdicts"])
