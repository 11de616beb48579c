"""`audit list|verify`, with an appliance and without one."""

from pathlib import Path

import pytest

from appliance.supervisor.admin.ports import NewAuditEntry
from appliance.supervisor.admin.schemas import AuditCheck
from appliance.supervisor.audit_log import AuditLog
from appliance.supervisor.desired_state import open_state
from tests.appliance.cli.conftest import Appliance, Run

CALL = NewAuditEntry(
    actor="k1",
    scope="admin",
    method="DELETE",
    route="/admin/v1/keys/{key_id}",
    target="k9",
    body_sha256=None,
    status=200,
    source="127.0.0.1",
)


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A state directory with three entries, of an appliance that has ended."""
    directory = tmp_path / "state"
    directory.mkdir()
    open_state(directory / "state.sqlite3").close()
    log = AuditLog(directory / "audit.jsonl", directory / "state.sqlite3")
    for _ in range(3):
        log.append(CALL)
    log.close()
    return directory


def test_entries_of_a_running_appliance_are_listed_oldest_first(run: Run, appliance: Appliance):
    assert "nobody has changed anything" in run("audit", "list").err
    run("wake", "e0")
    run("keys", "revoke", "k1")

    header, first, second = run("audit", "list").out.splitlines()
    assert header.startswith("SEQ")
    assert "POST /admin/v1/engines/{engine_id}/wake  e0" in first
    assert first.split()[-1] == "local"
    assert "DELETE" in second
    assert [entry["seq"] for entry in run("audit", "list", "-o", "json").json] == [1, 2]


def test_an_appliance_verifies_its_own_log(run: Run, appliance: Appliance):
    assert run("audit", "verify").out == "ok: 0 entries, unbroken\n"
    appliance.insight.audit.check = AuditCheck(
        ok=False, entries=4, first_bad_seq=5, problem="it was changed"
    )
    result = run("audit", "verify")

    assert result.code == 1
    assert "broken at entry 5: it was changed" in result.err
    assert run("audit", "verify", "-o", "json").json["first_bad_seq"] == 5


def test_without_an_appliance_the_files_are_looked_at(run: Run, state: Path):
    assert run("audit", "verify").out == "ok: 3 entries, unbroken\n"
    assert len(run("audit", "list", "-n", "2").out.splitlines()) == 3
    lines = (state / "audit.jsonl").read_bytes().splitlines(keepends=True)
    (state / "audit.jsonl").write_bytes(b"".join([lines[0], lines[2]]))
    result = run("audit", "verify")

    assert result.code == 1
    assert "broken at entry 2: entries 2 to 2 are missing" in result.err
    (state / "audit.jsonl").write_bytes(b"".join(lines[:2]))
    assert "entry 3: entries 3 to 3 are missing at the end" in run("audit", "verify").err


def test_an_archive_is_checked_by_itself(run: Run, state: Path, tmp_path: Path):
    archive = tmp_path / "old.jsonl"
    (state / "audit.jsonl").rename(archive)

    assert run("audit", "verify", "--file", archive).out == "ok: 3 entries, unbroken\n"
    assert run("audit", "verify").code == 1, "it is missing where it belongs"
    assert run("audit", "verify", "--file", tmp_path / "none").code == 2


def test_there_is_nothing_to_look_at(run: Run):
    assert run("audit", "verify").code == 2
    assert run("audit", "list").code == 0
