"""Compiles the CPU kernels into one shared library: `python ops/compile_kernels.py [--help]`.

Standard library only: setup.py calls it where nothing is installed yet. Sources are compiled side
by side, and again only when they, a header that they include, the flags or the compiler changed.
"""

import argparse
import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "engine" / "kernels" / "cpu" / "native"
LIBRARY = ROOT / "engine" / "kernels" / "cpu" / "_native.so"
OBJECTS = ROOT / "build" / "native"
COMPILERS = ("c++", "g++", "clang++")
HEADER_PATTERNS = ("*.h", "*.inl")

_COMMON = ("-std=c++17", "-fPIC", "-pthread", "-Wall", "-Wextra", "-fvisibility=hidden")
# No -march: each file of an instruction set names its own. Contraction would fuse additions and
# products as the compiler likes, and bits would differ between paths.
_EXACT = ("-ffp-contract=off",)
VARIANTS = {
    "release": ("-O3", "-Wl,--no-undefined"),
    # Line numbers without variables (-g1) and no check of null, whose use ends the run anyway: both
    # take the compiler minutes on code that is inlined as much as this.
    "address": (
        "-O1",
        "-g1",
        "-fno-omit-frame-pointer",
        "-fsanitize=address,undefined",
        "-fno-sanitize=null",
        "-fno-sanitize-recover=all",
    ),
    "thread": ("-O1", "-g1", "-fno-omit-frame-pointer", "-fsanitize=thread"),
}
"""Flags of each build."""


class CompileError(Exception):
    """The library could not be built; says why and what helps."""


@dataclass(frozen=True, slots=True)
class Build:
    """One build of the library."""

    variant: str = "release"
    sources: Path = SOURCES
    objects: Path = OBJECTS
    """Where objects are kept for the next time."""

    @property
    def flags(self) -> tuple[str, ...]:
        """Return what every source is compiled with."""
        return (*_COMMON, *_EXACT, *VARIANTS[self.variant])


def source_files(directory: Path = SOURCES) -> list[Path]:
    """Return the sources, in the order of their names."""
    return sorted(directory.glob("*.cpp"))


def header_files(directory: Path = SOURCES) -> list[Path]:
    """Return what the sources include of ours."""
    return sorted(path for pattern in HEADER_PATTERNS for path in directory.glob(pattern))


def compile_library(target: Path, build: Build | None = None) -> int:
    """Build the library and put it in place in one move: processes that use the old one go on.

    Returns:
        How many sources had to be compiled.

    Raises:
        CompileError: there is no compiler, or it refused.
    """
    build = build or Build()
    compiler = _compiler()
    objects = build.objects / build.variant
    objects.mkdir(parents=True, exist_ok=True)
    jobs = [_Job(path, objects / f"{path.stem}.o", compiler, build.flags)
            for path in source_files(build.sources)]  # fmt: skip
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as workers:
        compiled = sum(workers.map(_Job.run, jobs))
    _link(target, [job.object for job in jobs], [*compiler, *build.flags])
    return compiled


def _compiler() -> tuple[str, ...]:
    """Return the command of the compiler: what CXX says, else the first that is there."""
    named = os.environ.get("CXX")
    command = shlex.split(named) if named else [next(filter(shutil.which, COMPILERS), "")]
    found = shutil.which(command[0]) if command and command[0] else None
    if found is None:
        asked = f"there is no {command[0]}" if named and command else "there is no C++ compiler"
        raise CompileError(f"{asked}: install one (on Debian and Ubuntu: apt install g++)")
    return (found, *command[1:])


@dataclass(frozen=True, slots=True)
class _Job:
    """One source and its object."""

    source: Path
    object: Path
    compiler: tuple[str, ...]
    flags: tuple[str, ...]

    def run(self) -> bool:
        """Compile unless the object is what would come out; return whether it was compiled."""
        stamp = self.object.with_suffix(".json")
        if self.object.exists() and _reads(stamp) == self._state(_dependencies(self.object)):
            return False
        stamp.unlink(missing_ok=True)
        _call([*self.compiler, *self.flags, "-MMD", "-c", str(self.source), "-o", str(self.object)])
        stamp.write_text(json.dumps(self._state(_dependencies(self.object))))
        return True

    def _state(self, dependencies: Sequence[Path]) -> dict[str, str]:
        """Return all that the object depends on, by name.

        The source too: the dependencies of an object that was copied are those of another checkout.
        """
        compiler = Path(self.compiler[0])
        stat = compiler.stat()
        state = {
            "command": shlex.join([*self.compiler, *self.flags]),
            "source": str(self.source),
            "compiler": f"{compiler.resolve()} {stat.st_size} {stat.st_mtime_ns}",
        }
        return state | {str(path): _digest(path) for path in dependencies}


def _dependencies(object_: Path) -> list[Path]:
    """Return the files of ours that went into an object, as the compiler wrote them down."""
    try:
        text = object_.with_suffix(".d").read_text()
    except FileNotFoundError:
        return []
    names = shlex.split(text.partition(":")[2].replace("\\\n", " "))
    return [Path(name) for name in names if not name.startswith("/usr/")]


def _reads(stamp: Path) -> object:
    try:
        return json.loads(stamp.read_text())
    except (OSError, ValueError):
        return None


def _digest(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except FileNotFoundError:
        return "gone"


def _link(target: Path, objects: Sequence[Path], command: Sequence[str]) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    made = target.with_suffix(f".{os.getpid()}.tmp")
    try:
        _call([*command, "-shared", *map(str, objects), "-o", str(made)])
        made.replace(target)
    finally:
        made.unlink(missing_ok=True)


def _call(command: Sequence[str]) -> None:
    done = subprocess.run(  # noqa: S603 - the compiler that the person chose
        command, capture_output=True, text=True, check=False
    )
    sys.stderr.write(done.stderr)
    if done.returncode != 0:
        said = done.stderr.strip().splitlines()[-1:] or ["it said nothing"]
        raise CompileError(f"{command[0]} failed with code {done.returncode}: {said[0]}")


def main() -> int:
    """Build what the command line asks for; return the exit code."""
    parser = argparse.ArgumentParser(description="Compile the CPU kernels.")
    parser.add_argument("--variant", choices=VARIANTS, default="release")
    parser.add_argument("--to", type=Path, default=LIBRARY, help="The library.")
    parser.add_argument("--objects", type=Path, default=OBJECTS, help="Kept for the next time.")
    asked = parser.parse_args()
    try:
        compiled = compile_library(asked.to, Build(asked.variant, objects=asked.objects))
    except CompileError as error:
        sys.stderr.write(f"quarterdeck: the CPU kernels were not built: {error}\n")
        return 1
    sys.stderr.write(f"quarterdeck: {asked.to}, {compiled} sources compiled\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
