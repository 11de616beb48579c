"""The minutes of the promises on disk, so that a month's budget survives restarts.

A file of its own, a row per minute in which anything was judged: 43,200 rows at most. Writing is in
a thread; a full disk costs history, never service.
"""

import logging
import os
import sqlite3
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

logger = logging.getLogger(__name__)

SCHEMA = """
CREATE TABLE IF NOT EXISTS minutes (
    minute INTEGER PRIMARY KEY,
    availability_good INTEGER NOT NULL,
    availability_bad INTEGER NOT NULL,
    ttft_good INTEGER NOT NULL,
    ttft_bad INTEGER NOT NULL,
    tpot_good INTEGER NOT NULL,
    tpot_bad INTEGER NOT NULL
) STRICT;
"""


class MinuteRow(NamedTuple):
    """What was judged in one minute; all counts are of that minute alone."""

    minute: int
    """Minutes since 1970."""
    availability_good: int = 0
    availability_bad: int = 0
    ttft_good: int = 0
    ttft_bad: int = 0
    tpot_good: int = 0
    tpot_bad: int = 0


class SloDb:
    """Reads all minutes once and writes those that changed.

    Args:
        path: The file; one that cannot be read is put aside.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="slo-db")
        self._is_failing = False

    def load(self) -> list[MinuteRow]:
        """Return what is stored, oldest first; nothing when the file cannot be used."""
        try:
            return self._read()
        except (OSError, sqlite3.OperationalError):
            logger.exception("%s cannot be used: the budgets are kept in memory", self._path)
        except sqlite3.DatabaseError:
            logger.exception("%s is damaged and put aside: the budgets begin anew", self._path)
            self._put_aside()
        return []

    def save(self, rows: Sequence[MinuteRow], keep_from: int) -> None:
        """Write minutes over what is there, and forget those before `keep_from`; does not wait."""
        self._thread.submit(self._save, rows, keep_from)

    def close(self) -> None:
        """Wait until all is written."""
        self._thread.shutdown(wait=True)

    def _read(self) -> list[MinuteRow]:
        with closing(self._open()) as connection:
            rows = connection.execute("SELECT * FROM minutes ORDER BY minute").fetchall()
        return [MinuteRow(*row) for row in rows]

    def _put_aside(self) -> None:
        try:
            self._path.replace(self._path.with_suffix(".damaged"))
        except OSError:
            logger.exception("%s cannot be moved", self._path)

    def _open(self) -> sqlite3.Connection:
        if not self._path.exists():
            os.close(os.open(self._path, os.O_CREAT | os.O_WRONLY, 0o600))
        connection = sqlite3.connect(self._path, timeout=1.0)
        connection.executescript(SCHEMA)
        return connection

    def _save(self, rows: Sequence[MinuteRow], keep_from: int) -> None:
        try:
            with closing(self._open()) as connection, connection:
                connection.executemany(
                    "INSERT OR REPLACE INTO minutes VALUES (?, ?, ?, ?, ?, ?, ?)", rows
                )
                connection.execute("DELETE FROM minutes WHERE minute < ?", (keep_from,))
        except (OSError, sqlite3.Error):
            if not self._is_failing:
                logger.exception("%s was not written; the budgets go on in memory", self._path)
            self._is_failing = True
        else:
            self._is_failing = False
