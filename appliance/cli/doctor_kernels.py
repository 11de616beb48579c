"""The check of `doctor` on kernels: which would compute here, and why. Loads no torch."""

import shutil

from appliance.cli.doctor_finding import Finding, Verdict
from engine.kernels.cpu.library import NoLibraryError, all_instruction_sets, instruction_sets

_COMPILERS = ("c++", "g++", "clang++")
_PORTABLE = "portable"


def check_kernels(wish: str, dtype: str | None) -> Finding:
    """Say what an engine on the CPU would compute with.

    Args:
        wish: The setting `kernels`.
        dtype: The setting `dtype`.
    """
    if wish == "reference":
        return _found(Verdict.OK, "reference, as it is configured")
    if dtype not in (None, "bfloat16"):
        return _found(Verdict.OK, f"reference: only it computes in {dtype}")
    try:
        here, built = instruction_sets(), all_instruction_sets()
    except NoLibraryError as error:
        return _no_library(wish, error)
    name = wish.partition(":")[2]
    if name and name not in here:
        why = "this machine does not run it" if name in built else "this build does not have it"
        hint = f"This machine runs {', '.join(here)}."
        return _found(Verdict.FAILED, f"cpu:{name}: {why}", hint)
    return _found(Verdict.OK, _chosen(name, here, built))


def _chosen(name: str, here: list[str], built: list[str]) -> str:
    if name:
        return f"{name}, as it is configured"
    others = [each for each in built if each not in here]
    best = f"{here[0]}, the best of {', '.join(here)}" if len(here) > 1 else here[0]
    told = f" (not here: {', '.join(others)})" if others else ""
    slow = ": no instruction set of this processor has kernels of its own"
    return f"{best}{told}{slow if here[0] == _PORTABLE else ''}"


def _no_library(wish: str, error: NoLibraryError) -> Finding:
    has_compiler = any(map(shutil.which, _COMPILERS))
    hint = "make native compiles them, and shows what the compiler says."
    if not has_compiler:
        hint = f"apt install g++, then {hint}"
    told = str(error).partition(": install")[0]  # the hint says it for this machine
    if wish == "auto":
        return _found(Verdict.WARNING, f"reference, much slower: {told}", hint)
    return _found(Verdict.FAILED, f"{wish}: {told}", hint)


def _found(verdict: Verdict, text: str, hint: str | None = None) -> Finding:
    return Finding("kernels", verdict, text, hint)
