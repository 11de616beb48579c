"""What a check of `doctor` returns."""

from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    """How bad it is."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found."""

    check: str
    verdict: Verdict
    text: str
    hint: str | None = None
