"""What the machine can do at most, and which share of it a server reached.

    python ops/bench/ceilings.py [--threads 1 2] [--seconds 0.3] [--json] [--results RESULTS.json]

It compiles `ceilings.cpp` beside it into a temporary directory and measures, with each number of
threads: bytes read from memory, int8 products (`vpdpbusd`) and bfloat16 products (`vdpbf16ps`).
The best of several tries counts: a ceiling is what the machine gives when nobody disturbs.

With the JSON of `compare.py` it also prints the shares that Quarterdeck reached there.

- **bandwidth, one stream**: decoding a token reads all weights once, so
  `weights_bytes * 1000 / itl_ms_p50 / read bytes per second`. `weights_bytes` is the engine's own
  (`GET /admin/v1/engines`); a table of embeddings that is kept beside the head is looked up, not
  read, and makes the share look higher than it is. Weights that stay in the last cache between two
  tokens make it look higher too: it can exceed 1 for small models.
- **int8 or bfloat16 peak, many streams**: a token costs two operations per parameter that it
  passes, so `2 * num_parameters * total_tok_s / operations per second`. Prompts pass the head only
  once, which makes the share look higher; attention is not in it, which makes it look lower.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

SOURCE = Path(__file__).with_name("ceilings.cpp")
KINDS = ("read", "int8", "bf16")
TRIES = 5
COMPILE_S = 60.0
UNITS = {"read": ("GB/s read", 1e9), "int8": ("GOP/s int8", 1e9), "bf16": ("GOP/s bf16", 1e9)}


class CeilingsError(Exception):
    """The ceilings cannot be measured here."""


@dataclass(frozen=True, slots=True)
class Ceiling:
    """One limit, with one number of threads; per second."""

    kind: str
    threads: int
    best: float
    """0: this CPU has no such instruction."""
    median: float


def main() -> int:
    """Parse the command line, measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--seconds", type=float, default=0.3, help="of each try")
    parser.add_argument("--results", type=Path, help="JSON of compare.py, to print the shares")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    try:
        ceilings = measure_ceilings(asked.threads, asked.seconds)
    except CeilingsError as error:
        print(f"ceilings: {error}", file=sys.stderr)
        return 1
    if asked.json:
        print(json.dumps([asdict(each) for each in ceilings], indent=1))
    else:
        print("\n".join(lines_of(ceilings)))
    if asked.results:
        print("\n".join(lines_of_shares(json.loads(asked.results.read_text()), ceilings)))
    return 0


def measure_ceilings(threads: Sequence[int], seconds: float) -> list[Ceiling]:
    """Measure every kind with every number of threads; takes about their product times five.

    Raises:
        CeilingsError: there is no compiler, or it failed.
    """
    with tempfile.TemporaryDirectory(prefix="qd-ceilings-") as folder:
        program = _compile(Path(folder))
        return [_measure(program, kind, number, seconds) for kind in KINDS for number in threads]


def _compile(folder: Path) -> Path:
    compiler = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        raise CeilingsError("no C++ compiler is installed")
    program = folder / "ceilings"
    ran = subprocess.run(  # noqa: S603 - the compiler and our own source
        [compiler, "-std=c++17", "-O3", "-pthread", str(SOURCE), "-o", str(program)],
        capture_output=True,
        text=True,
        timeout=COMPILE_S,
        check=False,
    )
    if ran.returncode:
        raise CeilingsError(f"{compiler} failed:\n{ran.stderr[-2000:]}")
    return program


def _measure(program: Path, kind: str, threads: int, seconds: float) -> Ceiling:
    command = [str(program), kind, str(threads), str(seconds)]
    rates = sorted(
        float(subprocess.run(command, capture_output=True, check=True, timeout=60).stdout)  # noqa: S603 - compiled above
        for _ in range(TRIES)
    )
    return Ceiling(kind, threads, rates[-1], rates[len(rates) // 2])


def lines_of(ceilings: Sequence[Ceiling]) -> list[str]:
    """Return a line for each limit."""
    lines: list[str] = []
    for each in ceilings:
        unit, scale = UNITS[each.kind]
        threads = "1 thread" if each.threads == 1 else f"{each.threads} threads"
        value = f"{each.best / scale:8.1f} {unit} (median {each.median / scale:.1f})"
        lines.append(f"{threads:>10}  {value if each.best else f'no {each.kind} products here'}")
    return lines


def best_of(ceilings: Sequence[Ceiling], kind: str) -> float:
    """Return the highest limit of a kind, whatever the number of threads; 0: none."""
    return max((each.best for each in ceilings if each.kind == kind), default=0.0)


def bandwidth_share(weights_bytes: float, itl_ms: float, read_bytes_s: float) -> float:
    """Return the share of the read bandwidth that one stream reaches: see the module."""
    return weights_bytes * 1e3 / itl_ms / read_bytes_s


def compute_share(num_parameters: float, total_tok_s: float, peak_ops_s: float) -> float:
    """Return the share of the arithmetic peak that many streams reach: see the module."""
    return 2 * num_parameters * total_tok_s / peak_ops_s


def lines_of_shares(results: Mapping, ceilings: Sequence[Ceiling]) -> list[str]:
    """Return a line for each Quarterdeck variant and share in the results of `compare.py`."""
    lines: list[str] = []
    for cell in results["cells"]:
        facts = results["facts"].get(cell["subject"], {})
        if cell["scenario"] != "throughput" or not facts.get("weights_bytes"):
            continue
        for name, share in shares_of(cell, facts, ceilings):
            lines.append(f"{cell['subject']}, {cell['size']} streams: {share:.0%} of {name}")
    return lines


def shares_of(
    cell: Mapping, facts: Mapping, ceilings: Sequence[Ceiling]
) -> list[tuple[str, float]]:
    """Return which limits a cell of the throughput table reached, and the shares."""
    medians = cell["medians"]
    read = best_of(ceilings, "read")
    if cell["size"] == 1:
        share = bandwidth_share(facts["weights_bytes"], medians["itl_ms_p50"], read)
        return [("the read bandwidth", share)] if read else []
    kind = "bf16" if facts.get("quantization") == "none" else "int8"
    peak = best_of(ceilings, kind)
    if not peak or not facts.get("num_parameters"):
        return []
    share = compute_share(facts["num_parameters"], medians["total_tok_s"], peak)
    return [(f"the {kind} peak", share)]


if __name__ == "__main__":
    sys.exit(main())
