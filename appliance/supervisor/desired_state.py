"""What must survive a restart of the appliance: keys, epochs, sleep levels, adapters; in SQLite.

The file is versioned by `PRAGMA user_version`. A migration is a list of SQL statements that brings
one version to the next; it runs in one transaction with the new version number.
"""

import contextlib
import logging
import sqlite3
from collections.abc import Generator
from dataclasses import astuple, dataclass
from pathlib import Path

logger = logging.getLogger(__name__)

STATE_FILE = "state.sqlite3"

_KEYS = """
CREATE TABLE keys (
    id TEXT PRIMARY KEY,
    name TEXT NOT NULL,
    sha256 TEXT NOT NULL UNIQUE,
    scope TEXT NOT NULL,
    created_at REAL NOT NULL,
    expires_at REAL,
    revoked_at REAL
)
"""
_EPOCHS = "CREATE TABLE epochs (name TEXT PRIMARY KEY, epoch INTEGER NOT NULL)"
_ENGINES = """
CREATE TABLE engines (
    id TEXT PRIMARY KEY,
    desired_sleep_level INTEGER NOT NULL DEFAULT 0 CHECK (desired_sleep_level IN (0, 1, 2))
)
"""
_ADAPTERS = """
CREATE TABLE adapters (
    name TEXT PRIMARY KEY,
    path TEXT NOT NULL,
    model TEXT NOT NULL,
    content_hash TEXT NOT NULL,
    pinned INTEGER NOT NULL DEFAULT 0 CHECK (pinned IN (0, 1))
)
"""

_KEY_CONTENT = """
ALTER TABLE keys ADD COLUMN allows_content INTEGER NOT NULL DEFAULT 0
    CHECK (allows_content IN (0, 1))
"""
_AUDIT_HEAD = """
CREATE TABLE audit_head (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    seq INTEGER NOT NULL,
    hash TEXT NOT NULL
)
"""

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (_KEYS,),
    (_EPOCHS, _ENGINES),
    (_ADAPTERS,),
    (_KEY_CONTENT, _AUDIT_HEAD),
)
"""Index i brings version i to version i + 1."""

VERSION = len(MIGRATIONS)


class NewerStateError(Exception):
    """The state was written by a newer Quarterdeck; this one would not understand all of it."""


@dataclass(frozen=True, slots=True)
class WantedAdapter:
    """A LoRA adapter that all engines of its model shall have."""

    name: str
    path: str
    """Absolute, without symbolic links."""
    model: str
    """A served name of that model."""
    content_hash: str
    """What was loaded; other content at the path is not the same adapter."""
    pinned: bool = False


class StateDatabase:
    """The open state file. Use it from the thread that opened it.

    A disk that fills up while the appliance runs costs what should survive its end, not its work.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection
        self._issued: dict[str, int] = {}

    def next_epoch(self, name: str) -> int:
        """Issue the next epoch of an engine or gateway; it is in the file before it is returned."""
        epoch = self._issued.get(name) or self._number(
            "SELECT epoch FROM epochs WHERE name = ?", name
        )
        epoch = self._issued[name] = epoch + 1
        with self._saving(f"epoch {epoch} of {name}"):
            self.connection.execute(
                "INSERT INTO epochs (name, epoch) VALUES (?, ?)"
                " ON CONFLICT (name) DO UPDATE SET epoch = excluded.epoch",
                (name, epoch),
            )
        return epoch

    def desired_sleep_level(self, engine_id: str) -> int:
        """Return how deep this engine should sleep; 0 is awake, also for an unknown engine."""
        return self._number("SELECT desired_sleep_level FROM engines WHERE id = ?", engine_id)

    def set_desired_sleep_level(self, engine_id: str, level: int) -> None:
        """Remember how deep this engine should sleep, over restarts of engine and appliance."""
        with self._saving(f"sleep level {level} of {engine_id}"):
            self.connection.execute(
                "INSERT INTO engines (id, desired_sleep_level) VALUES (?, ?)"
                " ON CONFLICT (id) DO UPDATE SET desired_sleep_level = excluded"
                ".desired_sleep_level",
                (engine_id, level),
            )

    def adapters(self) -> list[WantedAdapter]:
        """Return all wanted adapters, by name."""
        rows = self.connection.execute(
            "SELECT name, path, model, content_hash, pinned FROM adapters ORDER BY name"
        )
        return [WantedAdapter(*texts, pinned=bool(pinned)) for *texts, pinned in rows]

    def set_adapter(self, adapter: WantedAdapter) -> None:
        """Remember an adapter, in place of one of the same name."""
        with self._saving(f"adapter {adapter.name}"):
            self.connection.execute(
                "INSERT OR REPLACE INTO adapters (name, path, model, content_hash, pinned)"
                " VALUES (?, ?, ?, ?, ?)",
                astuple(adapter),
            )

    def drop_adapter(self, name: str) -> None:
        """Forget an adapter."""
        with self._saving(f"the end of adapter {name}"):
            self.connection.execute("DELETE FROM adapters WHERE name = ?", (name,))

    def _number(self, query: str, key: str) -> int:
        row = self.connection.execute(query, (key,)).fetchone()
        return int(row[0]) if row else 0

    @contextlib.contextmanager
    def _saving(self, what: str) -> Generator[None]:
        """Hold a transaction; a file that takes no more is said and goes no further."""
        try:
            with self.connection:
                yield
        except sqlite3.OperationalError as error:
            logger.error("%s is not saved: %s", what, error)  # noqa: TRY400 - its text says all

    def close(self) -> None:
        """Close the file."""
        self.connection.close()


def open_state(path: Path) -> StateDatabase:
    """Open or create the state file, mode 0600, and migrate it to this version.

    Raises:
        NewerStateError: the file is of a version that this program does not know.
    """
    path.touch(mode=0o600)
    connection = sqlite3.connect(path, timeout=5.0)
    try:
        _refuse_newer(connection, path)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA foreign_keys = ON")
        migrate(connection, VERSION)
    except BaseException:
        connection.close()
        raise
    return StateDatabase(connection)


def migrate(connection: sqlite3.Connection, version: int) -> None:
    """Bring the database to `version`, one transaction per step."""
    for step in range(_version(connection), version):
        connection.execute("BEGIN IMMEDIATE")
        with connection:
            for statement in MIGRATIONS[step]:
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {step + 1}")


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def _refuse_newer(connection: sqlite3.Connection, path: Path) -> None:
    version = _version(connection)
    if version > VERSION:
        raise NewerStateError(
            f"{path} was written by a newer Quarterdeck (state version {version}; this one reads up"
            f" to {VERSION}). Upgrade, or use another --state-dir."
        )
