"""The chain of the audit log: what an entry's hash covers, and how a break is found.

An entry is one line of canonical JSON. Its hash is the SHA-256 of that JSON without the hash
itself, with the hash of the entry before in it. Whoever changes, removes or inserts a line has to
make every later line anew; the state database remembers the last hash, so that this is seen too.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

Entry = dict[str, Any]

GENESIS: Final = "0" * 64
"""What the first entry of all has as the hash before."""

CONTINUED: Final = "continued"
"""First entry of a new file, after the old one was taken away as an archive."""
RECOVERED: Final = "recovered"
"""A torn last line, of a crash or a full disk, was cut off."""
TRUNCATED: Final = "truncated"
"""Entries that the state database remembers are missing at the end."""
LOST: Final = "lost"
"""Entries could not be written."""
FOLDED: Final = "folded"
"""Refused calls without a valid key came in such numbers that only their count is kept."""
SYSTEM_ACTOR: Final = "quarterdeck"
"""Actor of the entries above; a key id is hex digits, so no caller is taken for it."""
SYSTEM_METHOD: Final = "-"


@dataclass(frozen=True, slots=True)
class Head:
    """The last entry of a chain."""

    seq: int
    hash: str


START: Final = Head(0, GENESIS)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a look at the whole chain found."""

    entries: int
    head: Head
    first_bad_seq: int | None = None
    problem: str | None = None


def canonical(entry: Mapping[str, Any]) -> bytes:
    """Return the one way to write an entry."""
    return json.dumps(entry, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()


def chained(entry: Mapping[str, Any], head: Head) -> Entry:
    """Return the entry with its number, the hash before, and its own hash."""
    numbered = {**entry, "seq": head.seq + 1, "previous": head.hash}
    return {**numbered, "hash": _hash(numbered)}


def parse(line: bytes) -> Entry | None:
    """Return the entry in a line, None when it is none."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    entry = cast("Entry", found)
    is_entry = isinstance(found, dict) and isinstance(entry.get("seq"), int)
    return entry if is_entry and isinstance(entry.get("hash"), str) else None


def verify(lines: Iterable[bytes], remembered: Head | None = None) -> Verdict:
    """Walk a chain from its first line.

    Args:
        lines: With or without their ends.
        remembered: The last entry that the state database knows; the chain must hold it, or be
            that of a new file which begins right after it.
    """
    head, count, is_remembered = START, 0, remembered in (None, START)
    for line in lines:
        entry = parse(line)
        problem = _problem(line, entry, head, is_first=count == 0)
        if entry is None or problem is not None:
            return Verdict(count, head, head.seq + 1, problem)
        is_remembered |= remembered == Head(entry["seq"] - 1, entry.get("previous", ""))
        head, count = Head(entry["seq"], entry["hash"]), count + 1
        if remembered is not None and head.seq == remembered.seq:
            is_remembered = True
            if head.hash != remembered.hash:
                text = "it is not the entry that was written: the chain was made anew"
                return Verdict(count, head, head.seq, text)
    if remembered is None or is_remembered:
        return Verdict(count, head)
    if head.seq < remembered.seq:
        text = f"entries {head.seq + 1} to {remembered.seq} are missing at the end"
        return Verdict(count, head, head.seq + 1, text)
    text = "the file neither holds nor follows it, the last entry that was written before"
    return Verdict(count, head, remembered.seq, text)


def _problem(line: bytes, entry: Entry | None, head: Head, *, is_first: bool) -> str | None:
    """Say what is wrong with an entry, None when it follows `head`."""
    if entry is None:
        return "it is torn" if not line.rstrip().endswith(b"}") else "it is no entry"
    unhashed = {name: value for name, value in entry.items() if name != "hash"}
    is_as_written = line.rstrip(b"\n") == canonical(entry)  # who reads the file reads its bytes
    if _hash(unhashed) != entry["hash"] or not is_as_written:
        return "it was changed"
    follows = entry["seq"] == head.seq + 1 and entry.get("previous") == head.hash
    if not follows and not (is_first and _is_system(entry, CONTINUED)):
        return _gap(entry["seq"], head)
    if _is_system(entry, TRUNCATED):
        return f"entries are missing before it: {entry.get('target')}"
    return None


def _gap(seq: int, head: Head) -> str:
    expected = head.seq + 1
    if seq > expected:
        return f"entries {expected} to {seq - 1} are missing"
    if seq < expected:
        return f"entry {seq} stands in its place: entries were put in between or reordered"
    return "it does not follow the entry before: that one was replaced, or this one put in"


def _is_system(entry: Entry, route: str) -> bool:
    return entry.get("actor") == SYSTEM_ACTOR and entry.get("route") == route


def _hash(entry: Mapping[str, Any]) -> str:
    return hashlib.sha256(canonical(entry)).hexdigest()
