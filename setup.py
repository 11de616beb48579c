"""Adds to the package what pyproject.toml cannot say: the library of CPU kernels, if it compiles.

`QUARTERDECK_BUILD_KERNELS=require` makes a failed compilation fail the build (for wheels that are
given away); `off` leaves the kernels out.
"""

import os
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT))

from ops.compile_kernels import (  # noqa: E402
    CompileError,
    compile_library,
    header_files,
    source_files,
)

WISH = os.environ.get("QUARTERDECK_BUILD_KERNELS", "auto")
NAME = "engine.kernels.cpu._native"


class BuildKernels(build_ext):
    """Compiles the library; without one the product runs on the reference kernels."""

    def get_ext_filename(self, fullname: str) -> str:
        """Return a name without a version of Python: the library is loaded by ctypes."""
        return f"{fullname.replace('.', os.sep)}.so"

    def build_extension(self, ext: Extension) -> None:
        """Compile, or say what the person should install."""
        target = Path(self.get_ext_fullpath(ext.name)).absolute()
        try:
            compile_library(target)
        except CompileError as error:
            if WISH == "require":
                raise
            self._remove_old(target)
            self.warn(f"the CPU kernels were not built, the slower reference kernels run: {error}")

    def _remove_old(self, target: Path) -> None:
        """No library is better than one of other sources."""
        target.unlink(missing_ok=True)
        if self.editable_mode:
            (ROOT / self.get_ext_filename(NAME)).unlink(missing_ok=True)


class AnyPythonWheel(bdist_wheel):
    """A wheel for one platform and every Python 3."""

    def get_tag(self) -> tuple[str, str, str]:
        """Return the tag: nothing in the library depends on Python."""
        return ("py3", "none", super().get_tag()[2])


def _relative(paths: list[Path]) -> list[str]:
    return [str(path.relative_to(ROOT)) for path in paths]


setup(
    cmdclass={"build_ext": BuildKernels, "bdist_wheel": AnyPythonWheel},
    ext_modules=[
        Extension(
            NAME,
            sources=_relative(source_files()),
            depends=_relative(header_files()),
            language="c++",
            optional=WISH != "require",
        )
    ]
    if WISH != "off"
    else [],
)
