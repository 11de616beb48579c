"""What survives a restart of the appliance, and of its version."""

import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from appliance.supervisor.desired_state import (
    VERSION,
    NewerStateError,
    WantedAdapter,
    migrate,
    open_state,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state.sqlite3"


def test_epochs_grow_for_ever_and_apart(path: Path):
    state = open_state(path)
    assert [state.next_epoch("e0"), state.next_epoch("e0"), state.next_epoch("e1")] == [1, 2, 1]
    state.close()

    state = open_state(path)
    assert state.next_epoch("e0") == 3
    state.close()


def test_the_desired_sleep_level_survives(path: Path):
    state = open_state(path)
    assert state.desired_sleep_level("e0") == 0
    state.set_desired_sleep_level("e0", 2)
    state.set_desired_sleep_level("e0", 1)
    state.close()

    state = open_state(path)
    assert state.desired_sleep_level("e0") == 1
    state.close()


def test_a_disk_that_takes_no_more_stops_nothing(path: Path, caplog: pytest.LogCaptureFixture):
    state = open_state(path)
    assert state.next_epoch("e0") == 1
    state.connection.execute("PRAGMA query_only = ON")  # refuses as a full disk does
    assert [state.next_epoch("e0"), state.next_epoch("e0"), state.next_epoch("e1")] == [2, 3, 1]
    state.set_desired_sleep_level("e0", 2)
    assert "sleep level 2 of e0 is not saved" in caplog.text

    state.connection.execute("PRAGMA query_only = OFF")
    assert state.next_epoch("e0") == 4
    assert not state.connection.in_transaction
    state.close()


def test_a_sleep_level_that_does_not_exist_is_refused(path: Path):
    state = open_state(path)
    with pytest.raises(sqlite3.IntegrityError):
        state.set_desired_sleep_level("e0", 3)
    state.close()


def test_a_state_of_version_1_keeps_its_keys(path: Path):
    old = sqlite3.connect(path)
    migrate(old, 1)
    old.execute(
        "INSERT INTO keys (id, name, sha256, scope, created_at, expires_at, revoked_at)"
        " VALUES ('k1', 'laptop', 'ab' , 'inference', 1.5, NULL, NULL),"
        "        ('k2', 'old', 'cd', 'admin', 1.0, 2.0, 3.0)"
    )
    old.commit()
    tables = {row[0] for row in old.execute("SELECT name FROM sqlite_master")}
    assert "engines" not in tables
    old.close()

    state = open_state(path)

    keys = state.connection.execute("SELECT * FROM keys ORDER BY id").fetchall()
    assert keys == [
        ("k1", "laptop", "ab", "inference", 1.5, None, None, 0),
        ("k2", "old", "cd", "admin", 1.0, 2.0, 3.0, 0),
    ]
    assert state.next_epoch("e0") == 1
    assert state.connection.execute("PRAGMA user_version").fetchone() == (VERSION,)
    state.close()


def test_a_migration_that_fails_changes_nothing(path: Path):
    old = sqlite3.connect(path)
    migrate(old, 1)
    old.execute("CREATE TABLE engines (something INTEGER)")
    old.commit()

    with pytest.raises(sqlite3.OperationalError, match="already exists"):
        migrate(old, VERSION)

    assert old.execute("PRAGMA user_version").fetchone() == (1,)
    tables = {row[0] for row in old.execute("SELECT name FROM sqlite_master")}
    assert "epochs" not in tables
    old.close()


def test_a_state_of_a_newer_version_is_refused_untouched(path: Path):
    newer = sqlite3.connect(path)
    newer.execute(f"PRAGMA user_version = {VERSION + 1}")
    newer.close()
    before = path.read_bytes()

    with pytest.raises(NewerStateError, match="newer Quarterdeck"):
        open_state(path)

    assert path.read_bytes() == before


def test_the_file_belongs_to_its_user_alone(path: Path):
    open_state(path).close()

    assert path.stat().st_mode & 0o777 == 0o600


def test_adapters_survive_by_name_and_are_forgotten(path: Path):
    sql = WantedAdapter("sql", "/adapters/sql", "base", "ab" * 32, pinned=True)
    state = open_state(path)
    state.set_adapter(replace(sql, content_hash="cd" * 32))
    state.set_adapter(sql)
    state.set_adapter(replace(sql, name="chat", pinned=False))
    state.close()

    state = open_state(path)
    assert state.adapters() == [replace(sql, name="chat", pinned=False), sql]
    state.drop_adapter("chat")
    assert state.adapters() == [sql]
    state.close()


def test_a_state_of_version_2_keeps_its_sleep_levels_and_has_no_adapters(path: Path):
    old = sqlite3.connect(path)
    migrate(old, 2)
    old.execute("INSERT INTO engines (id, desired_sleep_level) VALUES ('e0', 2)")
    old.commit()
    old.close()

    state = open_state(path)

    assert state.desired_sleep_level("e0") == 2
    assert state.adapters() == []
    assert state.connection.execute("PRAGMA user_version").fetchone() == (VERSION,)
    state.close()
