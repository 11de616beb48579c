"""The audit log: whatever is done to it afterwards is found, and at which entry."""

import json
import resource
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from appliance.supervisor.admin.ports import NewAuditEntry
from appliance.supervisor.audit_chain import (
    CONTINUED,
    GENESIS,
    SYSTEM_ACTOR,
    Entry,
    Head,
    canonical,
    chained,
    verify,
)
from appliance.supervisor.audit_file import remembered_head, verify_file
from appliance.supervisor.audit_log import STRANGERS_PER_MINUTE, AuditLog
from appliance.supervisor.desired_state import open_state

pytestmark = pytest.mark.anyio

CALL = NewAuditEntry(
    actor="0a1b2c3d4e",
    scope="admin",
    method="POST",
    route="/admin/v1/keys",
    target="k1",
    body_sha256="ab" * 32,
    status=201,
    source="127.0.0.1",
)

Open = Callable[[], AuditLog]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "audit.jsonl"


@pytest.fixture
def open_log(tmp_path: Path, path: Path) -> Iterator[Open]:
    open_state(tmp_path / "state.sqlite3").close()
    logs: list[AuditLog] = []

    def open_log() -> AuditLog:
        log = AuditLog(path, tmp_path / "state.sqlite3")
        logs.append(log)
        return log

    yield open_log
    for log in logs:
        log.close()


def write(open_log: Open, count: int) -> None:
    log = open_log()
    for number in range(count):
        log.append(replace(CALL, target=f"k{number}"))
    log.close()


def entries(path: Path) -> list[Entry]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def size_of(path: Path) -> int:
    return path.stat().st_size


def head_says(tmp_path: Path, path: Path) -> tuple[int | None, str | None]:
    verdict = verify_file(path, remembered_head(tmp_path / "state.sqlite3"))
    return verdict.first_bad_seq, verdict.problem


async def test_entries_are_chained_private_and_found_again(open_log: Open, path: Path):
    log = open_log()
    log.append(CALL)
    log.append(replace(CALL, actor="anonymous", scope=None, status=401))

    newest, oldest = await log.entries(10)
    assert (oldest.seq, oldest.previous, oldest.actor) == (1, GENESIS, "0a1b2c3d4e")
    assert (newest.seq, newest.previous, newest.status) == (2, oldest.hash, 401)
    assert [entry.seq for entry in await log.entries(1)] == [2]
    check = await log.verify()
    assert (check.ok, check.entries) == (True, 2)
    assert mode_of(path) == 0o600


def test_the_chain_goes_on_over_restarts(open_log: Open, path: Path, tmp_path: Path):
    for _ in range(3):
        write(open_log, 2)
    found = entries(path)

    assert [entry["seq"] for entry in found] == [1, 2, 3, 4, 5, 6]
    assert head_says(tmp_path, path) == (None, None)
    head = remembered_head(tmp_path / "state.sqlite3")
    assert head is not None
    assert (head.seq, head.hash) == (6, found[-1]["hash"])


def changed(lines: list[bytes]) -> list[bytes]:
    return [*lines[:3], lines[3].replace(b'"k3"', b'"k9"'), *lines[4:]]


def changed_and_hashed(lines: list[bytes]) -> list[bytes]:
    entry = json.loads(lines[3])
    before = Head(entry["seq"] - 1, entry["previous"])
    del entry["hash"]
    return [*lines[:3], canonical(chained(entry | {"target": "k9"}, before)), *lines[4:]]


def said_twice(lines: list[bytes]) -> list[bytes]:
    """For a parser the last one counts, for a reader the first."""
    return [*lines[:3], lines[3].replace(b'{"actor":', b'{"actor":"me","actor":'), *lines[4:]]


def begun_elsewhere(_: list[bytes]) -> list[bytes]:
    entry = {"actor": SYSTEM_ACTOR, "route": CONTINUED, "target": "a new file after entry 9"}
    return [canonical(chained(entry, Head(9, "f" * 64)))]


@pytest.mark.parametrize(
    ("damage", "first_bad_seq", "problem"),
    [
        (changed, 4, "it was changed"),
        (changed_and_hashed, 5, "does not follow"),
        (lambda lines: [*lines[:3], *lines[4:]], 4, "entries 4 to 4 are missing"),
        (lambda lines: [*lines[:3], *lines[5:]], 4, "entries 4 to 5 are missing"),
        (lambda lines: [*lines[:3], lines[2], *lines[3:]], 4, "entry 3 stands in its place"),
        (lambda lines: [*lines[:3], lines[4], lines[3], *lines[5:]], 4, "entries 4 to 4"),
        (lambda lines: [*lines[:3], lines[3][:40], *lines[4:]], 4, "torn"),
        (lambda lines: [*lines[:3], b'{"seq": 4}', *lines[4:]], 4, "no entry"),
        (lambda lines: [*lines[:3], b"[" * 100_000, *lines[4:]], 4, "torn"),
        (said_twice, 4, "it was changed"),
        (lambda lines: [*lines[:3], b" " + lines[3], *lines[4:]], 4, "it was changed"),
        (lambda lines: [*lines[:3], lines[3] + b"\r", *lines[4:]], 4, "it was changed"),
        (begun_elsewhere, 8, "neither holds nor follows it"),
        (lambda lines: lines[2:], 1, "entries 1 to 2 are missing"),
        (lambda lines: lines[:4], 5, "entries 5 to 8 are missing at the end"),
        (lambda _: [], 1, "entries 1 to 8 are missing at the end"),
        (lambda lines: [*lines[:7], changed_and_hashed([*lines[:3], lines[7]])[3]], 8, "made anew"),
    ],
)
def test_every_kind_of_damage_is_found_at_its_entry(
    open_log: Open,
    path: Path,
    tmp_path: Path,
    damage: Callable[[list[bytes]], list[bytes]],
    first_bad_seq: int,
    problem: str,
):
    write(open_log, 8)
    lines = path.read_bytes().splitlines()
    path.write_bytes(b"".join(line + b"\n" for line in damage(lines)))

    found, said = head_says(tmp_path, path)
    assert said is not None
    assert problem in said
    assert found == first_bad_seq


KILLED = """
import asyncio, os, signal, sys
from pathlib import Path
from appliance.supervisor.audit_log import AuditLog
from tests.appliance.supervisor.test_audit_log import CALL

async def call(log):
    log.append(CALL)
    await log.written()

log = AuditLog(Path(sys.argv[1]), Path(sys.argv[2]))
for _ in range(3):
    asyncio.run(call(log))
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.process
def test_what_was_waited_for_outlives_a_kill(open_log: Open, path: Path, tmp_path: Path):
    state = tmp_path / "state.sqlite3"
    command = [sys.executable, "-c", KILLED, path, state]
    ended = subprocess.run(command, check=False, capture_output=True, timeout=60)

    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert [entry["target"] for entry in entries(path)] == ["k1"] * 3
    assert head_says(tmp_path, path) == (None, None)


def test_every_changed_byte_is_found(open_log: Open, path: Path):
    write(open_log, 2)
    content = path.read_bytes()
    for at in range(0, len(content) - 1, 3):
        if content[at : at + 1] != b"\n":
            broken = content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]
            verdict = verify(broken.splitlines(keepends=True))
            assert verdict.problem is not None, broken


def test_a_torn_last_line_is_repaired_and_that_is_written_down(
    open_log: Open, path: Path, tmp_path: Path
):
    write(open_log, 3)
    with path.open("ab") as file:
        file.write(b'{"actor":"x","at"')
    assert head_says(tmp_path, path)[1] == "it is torn"
    write(open_log, 1)

    *_, recovered, after = entries(path)
    assert (recovered["actor"], recovered["route"]) == (SYSTEM_ACTOR, "recovered")
    assert recovered["target"] == "17 bytes of a torn last line cut off"
    assert (recovered["seq"], after["seq"]) == (4, 5)
    assert head_says(tmp_path, path) == (None, None)


def test_a_cut_end_stays_seen_after_the_next_start(open_log: Open, path: Path, tmp_path: Path):
    write(open_log, 5)
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:3]))
    write(open_log, 1)

    found, problem = head_says(tmp_path, path)
    assert (found, problem) == (
        4, "entries are missing before it: entries 4 to 5 are missing at the end",
    )  # fmt: skip


def test_an_archived_file_is_followed_by_one_that_goes_on(
    open_log: Open, path: Path, tmp_path: Path
):
    write(open_log, 3)
    path.rename(tmp_path / "archive.jsonl")
    write(open_log, 1)

    first, second = entries(path)
    assert (first["route"], first["seq"], second["seq"]) == ("continued", 4, 5)
    assert first["previous"] == entries(tmp_path / "archive.jsonl")[-1]["hash"]
    assert head_says(tmp_path, path) == (None, None)
    assert verify_file(tmp_path / "archive.jsonl", None).problem is None


async def test_a_full_disk_is_counted_told_once_and_written_down_later(
    open_log: Open, path: Path, tmp_path: Path
):
    counts: list[tuple[str, int]] = []
    news: list[bool] = []
    log = open_log()
    log.on_entries = lambda outcome, count: counts.append((outcome, count))
    log.on_failing = news.append
    log.append(CALL)
    assert (await log.verify()).ok
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size_of(path) + 40, before[1]))
        log.append(CALL)
        log.append(CALL)
        assert len(await log.entries(10)) == 1
        log.tick()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    log.append(CALL)
    found = await log.entries(10)
    log.tick()

    assert [entry.route for entry in found] == ["/admin/v1/keys", "lost", "/admin/v1/keys"]
    assert found[1].target == "2 entries could not be written"
    assert (await log.verify()).ok
    assert sorted(counts) == [("lost", 2), ("written", 1), ("written", 1)]
    assert news == [True, False]


async def test_a_flood_of_strangers_is_folded(open_log: Open):
    counts: list[tuple[str, int]] = []
    log = open_log()
    log.on_entries = lambda outcome, count: counts.append((outcome, count))
    stranger = replace(CALL, actor="anonymous", scope=None, status=401)
    for _ in range(STRANGERS_PER_MINUTE + 7):
        log.append(stranger)
    log.append(CALL)
    log.close()
    log.tick()

    found = await log.entries(3)
    assert found[0].target == "7 more calls without a valid key were refused"
    assert found[1].actor == CALL.actor, "who has a key is always entered"
    assert dict(counts)["folded"] == 7


async def test_a_state_database_that_cannot_be_used_stops_nothing(
    open_log: Open, path: Path, tmp_path: Path
):
    (tmp_path / "state.sqlite3").unlink()
    (tmp_path / "state.sqlite3").mkdir()
    log = open_log()
    log.append(CALL)
    assert (await log.verify()).ok
    log.close()
    assert len(entries(path)) == 1
