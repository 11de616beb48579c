"""The library of kernels is built where it can be, again when it must be, and never half."""

import ctypes
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from ops.compile_kernels import (
    ROOT,
    SOURCES,
    Build,
    CompileError,
    compile_library,
    header_files,
)

WITHOUT_COMPILER = {"CXX": "no-such-compiler"}
SOURCE = """\
#include "number.h"
extern "C" __attribute__((visibility("default"))) int number() { return kNumber; }
"""
OTHER = 'extern "C" __attribute__((visibility("default"))) int other() { return 1; }\n'


@pytest.fixture
def build(tmp_path: Path) -> Build:
    sources = tmp_path / "native"
    sources.mkdir()
    (sources / "number.h").write_text("constexpr int kNumber = 7;\n")
    (sources / "number.cpp").write_text(SOURCE)
    (sources / "other.cpp").write_text(OTHER)
    return Build(sources=sources, objects=tmp_path / "objects")


def number_of(library: Path, tmp_path: Path) -> int:
    """Load a copy: a library that is loaded already would be given again."""
    copy = shutil.copy(library, tmp_path / f"{library.stat().st_ino}.so")
    return ctypes.CDLL(str(copy)).number()


def test_only_what_changed_is_compiled_again(build: Build, tmp_path: Path):
    target = tmp_path / "out" / "library.so"

    assert compile_library(target, build) == 2
    assert number_of(target, tmp_path) == 7
    assert compile_library(target, build) == 0

    (build.sources / "other.cpp").write_text(OTHER + "// changed\n")
    assert compile_library(target, build) == 1


def test_a_changed_header_compiles_the_sources_that_include_it(build: Build, tmp_path: Path):
    target = tmp_path / "library.so"
    compile_library(target, build)
    (build.sources / "number.h").write_text("constexpr int kNumber = 8;\n")

    assert compile_library(target, build) == 1
    assert number_of(target, tmp_path) == 8


def test_a_copied_checkout_compiles_its_own_sources(build: Build, tmp_path: Path):
    compile_library(tmp_path / "library.so", build)
    copy = Build(
        sources=shutil.copytree(build.sources, tmp_path / "copy" / "native"),
        objects=shutil.copytree(build.objects, tmp_path / "copy" / "objects"),
    )
    (copy.sources / "number.h").write_text("constexpr int kNumber = 8;\n")

    assert compile_library(tmp_path / "copy" / "library.so", copy) == 2
    assert number_of(tmp_path / "copy" / "library.so", tmp_path) == 8


def test_a_source_that_is_gone_is_gone_from_the_library(build: Build, tmp_path: Path):
    target = tmp_path / "library.so"
    compile_library(target, build)
    (build.sources / "other.cpp").unlink()

    compile_library(target, build)

    assert not hasattr(ctypes.CDLL(str(target)), "other")


def test_a_process_that_has_the_old_library_keeps_it(build: Build, tmp_path: Path):
    target = tmp_path / "library.so"
    compile_library(target, build)
    before = target.stat().st_ino
    loaded = ctypes.CDLL(str(target))
    (build.sources / "number.h").write_text("constexpr int kNumber = 8;\n")

    compile_library(target, build)

    assert target.stat().st_ino != before
    assert loaded.number() == 7


def test_a_source_that_does_not_compile_leaves_the_library_and_says_why(
    build: Build, tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    target = tmp_path / "library.so"
    compile_library(target, build)
    (build.sources / "number.cpp").write_text("no c++\n")

    with pytest.raises(CompileError, match="failed with code 1"):
        compile_library(target, build)

    assert "number.cpp" in capfd.readouterr().err
    assert number_of(target, tmp_path) == 7
    assert [path.name for path in tmp_path.glob("*.tmp")] == []


def test_a_name_that_nothing_defines_fails_the_build(build: Build, tmp_path: Path):
    (build.sources / "number.cpp").write_text("int absent();\nint use() { return absent(); }\n")

    with pytest.raises(CompileError):
        compile_library(tmp_path / "library.so", build)

    assert not (tmp_path / "library.so").exists()


def test_the_build_that_is_watched_ends_the_run_at_an_access_out_of_bounds(
    build: Build, tmp_path: Path
):
    source = (
        'extern "C" __attribute__((visibility("default"))) int at(int* p, int i) { return p[i]; }'
    )
    (build.sources / "other.cpp").write_text(source + "\n")
    target = tmp_path / "library.so"
    compile_library(target, Build("address", build.sources, build.objects))
    program = (
        "import ctypes, sys\n"
        "print(ctypes.CDLL(sys.argv[1]).at((ctypes.c_int * 64)(), int(sys.argv[2])))"
    )
    asked = ["g++", "-print-file-name=libasan.so"]
    runtime = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()

    def read(index: int) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, "LD_PRELOAD": runtime, "ASAN_OPTIONS": "detect_leaks=0"}
        env["PYTHONMALLOC"] = "malloc"  # as ops/sanitize.sh: its own arenas are not watched
        command = [sys.executable, "-c", program, str(target), str(index)]
        return subprocess.run(command, env=env, capture_output=True, text=True, check=False)

    assert read(63).stdout == "0\n"
    assert "heap-buffer-overflow" in read(64).stderr


@pytest.mark.parametrize("source", sorted(SOURCES.glob("isa_*.cpp")), ids=lambda path: path.stem)
def test_code_for_one_instruction_set_alone_has_no_functions_that_others_share(source: Path):
    """The linker would merge them, and may keep those that some processors cannot run."""
    compiler = shutil.which("g++") or shutil.which("clang++")
    assert compiler is not None
    text = subprocess.run(
        [compiler, "-E", "-std=c++17", str(source)], capture_output=True, text=True, check=True
    ).stdout
    begins = r"^#pragma (?:GCC push_options|clang attribute push)"
    ends = r"^#pragma (?:GCC pop_options|clang attribute pop)"
    inside = re.findall(f"{begins}.*?(?={ends})", text, re.DOTALL | re.MULTILINE)
    within = {
        Path(name).name
        for part in inside
        for name in re.findall(r'^# \d+ "([^"]+)"', part, re.MULTILINE)
    }
    ours = within & {path.name for path in header_files() if path.suffix == ".h"}

    assert ours <= {"candidates.h", "vec_avx2.h", "vec_avx512.h"}  # static ones


def test_without_a_compiler_one_reads_what_to_install(
    build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(CompileError, match=r"no C\+\+ compiler.*apt install g\+\+"):
        compile_library(tmp_path / "library.so", build)


# ------------------------------------------------------------ the package


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what the build reads, with one small source in place of the kernels."""
    copy = tmp_path_factory.mktemp("project")
    for name in ("setup.py", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    for name in ("CHANGELOG.md", "constraints.txt", "ops/compile_kernels.py", "ops/setup.sh"):
        (copy / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, copy / name)
    packages = (
        "engine/__init__.py",
        "engine/kernels/__init__.py",
        "engine/kernels/cpu/__init__.py",
    )
    for name in packages:
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        (copy / name).touch()
    native = copy / "engine" / "kernels" / "cpu" / "native"
    native.mkdir()
    (native / "number.h").write_text("constexpr int kNumber = 7;\n")
    (native / "number.cpp").write_text(SOURCE)
    return copy


def backend(project: Path, call: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Call setuptools as pip does."""
    return subprocess.run(
        [sys.executable, "-c", f"import setuptools.build_meta as backend; backend.{call}"],
        cwd=project,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def names_in(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


def test_a_wheel_has_the_library_and_fits_every_python_3(project: Path, tmp_path: Path):
    done = backend(project, f"build_wheel({str(tmp_path)!r})")

    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    assert "-py3-none-linux_" in wheel.name
    assert "engine/kernels/cpu/_native.so" in names_in(wheel)
    assert not [name for name in names_in(wheel) if "/native/" in name]


def test_without_a_compiler_a_wheel_is_built_that_has_none_and_says_so(
    project: Path, tmp_path: Path
):
    done = backend(project, f"build_wheel({str(tmp_path)!r})", **WITHOUT_COMPILER)

    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    assert not [name for name in names_in(wheel) if name.endswith(".so")]
    told = done.stdout + done.stderr
    assert "the CPU kernels were not built, the slower reference kernels run" in told
    assert "apt install g++" in told


def test_an_editable_install_puts_the_library_beside_the_sources_and_takes_a_stale_one_away(
    project: Path, tmp_path: Path
):
    library = project / "engine" / "kernels" / "cpu" / "_native.so"

    assert backend(project, f"build_editable({str(tmp_path)!r})").returncode == 0
    assert library.exists()

    again = backend(project, f"build_editable({str(tmp_path)!r})", **WITHOUT_COMPILER)
    assert again.returncode == 0, again.stderr
    assert not library.exists()


def test_whoever_requires_the_kernels_gets_no_wheel_without_them(project: Path, tmp_path: Path):
    env = {**WITHOUT_COMPILER, "QUARTERDECK_BUILD_KERNELS": "require"}

    assert backend(project, f"build_wheel({str(tmp_path)!r})", **env).returncode != 0
    assert list(tmp_path.glob("*.whl")) == []


def test_a_source_distribution_has_what_the_build_needs(project: Path, tmp_path: Path):
    done = backend(project, f"build_sdist({str(tmp_path)!r})")

    assert done.returncode == 0, done.stderr
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    native = "engine/kernels/cpu/native"
    needed = {"setup.py", "ops/compile_kernels.py", f"{native}/number.cpp", f"{native}/number.h"}
    assert needed <= names


# ------------------------------------------------------------ make serve, make test


class Checkout:
    """A copy in which everything but the kernels is installed already."""

    def __init__(self, project: Path, directory: Path) -> None:
        self.path = directory / "checkout"
        shutil.copytree(project, self.path, ignore=shutil.ignore_patterns("build", "*.so"))
        (self.path / ".venv" / "bin").mkdir(parents=True)
        (self.path / ".venv" / "bin" / "python").symlink_to(sys.executable)
        parts = ("constraints.txt", "pyproject.toml", "setup.py", "ops/setup.sh")
        content = b"".join((self.path / part).read_bytes() for part in parts)
        stamp = subprocess.run(["cksum"], input=content, capture_output=True, check=True).stdout
        (self.path / ".venv" / "installed-run").write_bytes(stamp)

    @property
    def library(self) -> Path:
        return self.path / "engine" / "kernels" / "cpu" / "_native.so"

    def set_up(self, **env: str) -> str:
        """Run it; return what it said."""
        done = subprocess.run(
            ["sh", "ops/setup.sh", "run"],
            cwd=self.path,
            env={**os.environ, "PYTHON": sys.executable, **env},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        return done.stdout + done.stderr


@pytest.fixture
def checkout(project: Path, tmp_path: Path) -> Checkout:
    return Checkout(project, tmp_path)


def test_set_up_compiles_the_kernels_again_after_their_sources_changed(checkout: Checkout):
    assert "compiling the CPU kernels" in checkout.set_up()
    assert checkout.library.exists()
    assert checkout.set_up() == ""

    with (checkout.path / "engine/kernels/cpu/native/number.h").open("a") as header:
        header.write("// from a pull\n")
    assert "1 sources compiled" in checkout.set_up()

    checkout.library.unlink()
    assert "0 sources compiled" in checkout.set_up()


def test_set_up_without_a_compiler_says_once_what_is_missing_and_succeeds(checkout: Checkout):
    told = checkout.set_up(**WITHOUT_COMPILER)

    assert "apt install g++" in told
    assert "the slower reference kernels will run" in told
    assert checkout.set_up(**WITHOUT_COMPILER) == ""
    assert "compiled" in checkout.set_up(), "a compiler came"
