"""`doctor` says which kernels would compute here and why, and loads no torch for it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ops.compile_kernels import Build, compile_library

LIBRARY = """\
#include <cstdint>
#define API extern "C" __attribute__((visibility("default")))
API int32_t qd_abi_version() { return 1; }
API const char* qd_isa_name(int32_t index) {
  const char* const names[] = {"newest", "usual", "portable", nullptr};
  return names[index];
}
API int32_t qd_isa_runs_here(int32_t index) { return index > 0; }
API void qd_pool_create() {}
API void qd_pool_destroy() {}
API void qd_engine_create() {}
API void qd_engine_destroy() {}
API void qd_forward() {}
API void qd_cache_block_bytes() {}
"""
PROGRAM = """\
import json, sys
from dataclasses import asdict
from appliance.cli.doctor_kernels import check_kernels
print(json.dumps(asdict(check_kernels(sys.argv[1], sys.argv[2] or None))))
assert "torch" not in sys.modules
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A build whose best instruction set no machine runs."""
    directory = tmp_path_factory.mktemp("library")
    (directory / "abi.cpp").write_text(LIBRARY)
    target = directory / "library.so"
    compile_library(target, Build(sources=directory, objects=directory / "objects"))
    return target


def check(library: Path, kernels: str, dtype: str = "", **env: str) -> tuple[str, str, str]:
    """Verdict, text and hint, from a process of its own: a library stays loaded."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, kernels, dtype],
        env={**os.environ, "QUARTERDECK_CPU_LIBRARY": str(library), **env},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    return found["verdict"], found["text"], found["hint"] or ""


def test_the_best_instruction_set_is_named_with_those_that_do_not_run_here(library: Path):
    told = "usual, the best of usual, portable (not here: newest)"

    assert check(library, "auto") == ("ok", told, "")
    assert check(library, "cpu")[:2] == ("ok", told)


@pytest.mark.parametrize(
    ("kernels", "verdict", "text"),
    [
        ("cpu:portable", "ok", "portable, as it is configured"),
        ("cpu:newest", "failed", "cpu:newest: this machine does not run it"),
        ("cpu:mmx", "failed", "cpu:mmx: this build does not have it"),
    ],
)
def test_a_chosen_instruction_set_must_be_there(
    library: Path, kernels: str, verdict: str, text: str
):
    found, told, hint = check(library, kernels)

    assert (found, told) == (verdict, text)
    assert ("This machine runs usual, portable." in hint) == (verdict == "failed")


def test_the_reference_is_said_to_be_one_where_something_asks_for_it(library: Path):
    assert check(library, "reference")[:2] == ("ok", "reference, as it is configured")
    assert check(library, "auto", "float32")[:2] == (
        "ok",
        "reference: only it computes in float32",
    )


def test_without_the_library_one_reads_what_it_costs_and_what_helps(tmp_path: Path):
    absent = tmp_path / "absent.so"

    verdict, text, hint = check(absent, "auto")
    assert verdict == "warning"
    assert text.startswith("reference, much slower: the CPU kernels cannot be loaded: ")
    assert hint == "make native compiles them, and shows what the compiler says."
    assert check(absent, "cpu")[0] == "failed"
    assert check(absent, "auto", PATH=str(tmp_path))[2].startswith("apt install g++, then ")


@pytest.mark.parametrize("setting", ["QUANTIZATION", "KV_CACHE_DTYPE"])
def test_without_the_library_what_only_it_can_do_fails(setting: str, tmp_path: Path):
    program = "from appliance.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program, "doctor", "-o", "json"],
        env={
            **os.environ,
            "QUARTERDECK_CPU_LIBRARY": str(tmp_path / "missing.so"),
            f"QUARTERDECK_{setting}": "int8",
        },
        capture_output=True,
        text=True,
        check=False,
    )

    assert ("kernels", "failed") in [
        (finding["check"], finding["verdict"]) for finding in json.loads(done.stdout)
    ]
