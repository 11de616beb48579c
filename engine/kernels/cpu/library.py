"""Finds and loads the library of C++ kernels, which is there only if it could be built."""

import ctypes
import os
from ctypes import POINTER, c_char_p, c_int32, c_int64, c_void_p
from functools import cache
from pathlib import Path
from typing import Self

from engine.kernels.cpu.structs import Model, Step

LIBRARY_VARIABLE = "QUARTERDECK_CPU_LIBRARY"
"""Environment variable with the path of another build of the library."""
ABI_VERSION = 1
OK, NO_MEMORY, BAD_VALUE = 0, -1, -2


class NoLibraryError(Exception):
    """The kernels are not there or cannot be used; says why and what helps."""


@cache
def library() -> ctypes.CDLL:
    """Return the loaded library, with the types of `abi.h` declared.

    Raises:
        NoLibraryError: it was not built, or is of another version.
    """
    path = _path()
    try:
        loaded = ctypes.CDLL(str(path))
        loaded.qd_abi_version.restype = c_int32
        version = loaded.qd_abi_version()
        if version == ABI_VERSION:
            _declare(loaded)
    except (OSError, AttributeError) as error:
        raise NoLibraryError(f"the CPU kernels cannot be loaded: {error}") from error
    if version != ABI_VERSION:
        raise NoLibraryError(
            f"the CPU kernels are of version {version}, this is version {ABI_VERSION}: "
            "install Quarterdeck again"
        )
    return loaded


def instruction_sets() -> list[str]:
    """Return the instruction sets that this build has and this machine runs, best first.

    Raises:
        NoLibraryError: see `library`.
    """
    return [name for name, runs_here in _all_instruction_sets(library()) if runs_here]


def all_instruction_sets() -> list[str]:
    """Return those that this build has, whether or not this machine runs them.

    Raises:
        NoLibraryError: see `library`.
    """
    return [name for name, _ in _all_instruction_sets(library())]


class Pool:
    """Threads that compute together; the calling thread is one of them.

    Args:
        num_threads: The caller included.
    """

    def __init__(self, num_threads: int) -> None:
        self.num_threads = num_threads
        self.handle: int | None = None
        self._pid = os.getpid()
        self.handle = library().qd_pool_create(num_threads)
        if self.handle is None:
            raise MemoryError(f"{num_threads} threads could not be made")

    def close(self) -> None:
        """End the threads; idempotent. Nothing may use the pool any longer.

        A forked process has none of them, and would wait for them without end.
        """
        handle, self.handle = self.handle, None
        if handle is not None and os.getpid() == self._pid:
            library().qd_pool_destroy(handle)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


def _path() -> Path:
    chosen = os.environ.get(LIBRARY_VARIABLE)
    if chosen:
        return Path(chosen)
    found = sorted(Path(__file__).parent.glob("_native*.so"))
    if not found:
        raise NoLibraryError(
            "the CPU kernels were not built: install a C++ compiler (on Debian and Ubuntu: "
            "apt install g++) and Quarterdeck again; if there is one, `quarterdeck doctor` and "
            "the installation's output say more"
        )
    return found[0]


def _all_instruction_sets(loaded: ctypes.CDLL) -> list[tuple[str, bool]]:
    found: list[tuple[str, bool]] = []
    index = 0
    while (name := loaded.qd_isa_name(index)) is not None:
        found.append((name.decode(), bool(loaded.qd_isa_runs_here(index))))
        index += 1
    return found


def _declare(loaded: ctypes.CDLL) -> None:
    """Declare what engines use; entries for tests and benches are declared where they are used."""
    for name, result, arguments in (
        ("qd_isa_name", c_char_p, [c_int32]),
        ("qd_isa_runs_here", c_int32, [c_int32]),
        ("qd_pool_create", c_void_p, [c_int32]),
        ("qd_pool_destroy", None, [c_void_p]),
        (
            "qd_engine_create",
            c_void_p,
            [POINTER(Model), c_void_p, c_char_p, c_int32, c_int32],
        ),
        ("qd_engine_destroy", None, [c_void_p]),
        ("qd_forward", c_int32, [c_void_p, POINTER(Step)]),
        ("qd_cache_block_bytes", c_int64, [c_int32, c_int32, c_int32, c_int32]),
    ):
        function = loaded[name]
        function.restype = result
        function.argtypes = arguments
        setattr(loaded, name, function)  # else the attribute is another object, undeclared
