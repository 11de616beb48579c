"""The SQLite file of the trace store: its tables, and how it is opened.

A trace can always be lost, so a file of another version, or a damaged one, is replaced.
"""

import os
import sqlite3
from pathlib import Path

VERSION = 3
BUSY_S = 1.0
"""Longest wait for another process that holds the file."""

SCHEMA = """
PRAGMA auto_vacuum = INCREMENTAL;
CREATE TABLE steps (
    id INTEGER PRIMARY KEY,
    engine TEXT NOT NULL,
    epoch INTEGER NOT NULL,
    since_ns INTEGER NOT NULL,
    until_ns INTEGER NOT NULL,
    offset_ns INTEGER NOT NULL,
    facts INTEGER NOT NULL,
    chunk BLOB NOT NULL
) STRICT;
CREATE INDEX steps_by_time ON steps (until_ns);
CREATE TABLE hops (
    id INTEGER PRIMARY KEY,
    trace BLOB NOT NULL,
    until_ns INTEGER NOT NULL,
    hop BLOB NOT NULL
) STRICT;
CREATE INDEX hops_by_trace ON hops (trace);
CREATE TABLE spans (
    id INTEGER PRIMARY KEY,
    trace BLOB NOT NULL,
    name TEXT NOT NULL,
    until_ns INTEGER NOT NULL,
    offset_ns INTEGER NOT NULL,
    span BLOB NOT NULL
) STRICT;
CREATE INDEX spans_by_trace ON spans (trace);
CREATE TABLE requests (
    id INTEGER PRIMARY KEY,
    key TEXT NOT NULL UNIQUE,
    trace_id TEXT NOT NULL,
    received_unix_ns INTEGER NOT NULL,
    model TEXT,
    route TEXT NOT NULL,
    key_id TEXT,
    engine TEXT,
    name TEXT NOT NULL,
    headline TEXT NOT NULL,
    offset_ns INTEGER NOT NULL,
    request TEXT NOT NULL,
    ended_unix_ns INTEGER NOT NULL,
    outcome TEXT NOT NULL,
    prompt_tokens INTEGER NOT NULL,
    cached_tokens INTEGER NOT NULL,
    completion_tokens INTEGER NOT NULL,
    duration_ms REAL NOT NULL,
    ttft_ms REAL,
    front_ms REAL NOT NULL,
    dispatch_ms REAL,
    queue_ms REAL,
    prefill_ms REAL,
    decode_ms REAL,
    stream_ms REAL,
    tpot_ms REAL,
    max_batch INTEGER NOT NULL,
    record BLOB NOT NULL
) STRICT;
CREATE INDEX requests_by_arrival ON requests (received_unix_ns);
CREATE INDEX requests_by_end ON requests (ended_unix_ns);
CREATE INDEX requests_by_trace ON requests (trace_id);
CREATE TABLE events (
    id INTEGER PRIMARY KEY,
    at_unix_ns INTEGER NOT NULL,
    kind TEXT NOT NULL,
    level TEXT NOT NULL,
    subject TEXT NOT NULL,
    text TEXT NOT NULL
) STRICT;
CREATE INDEX events_by_time ON events (at_unix_ns);
CREATE TABLE losses (
    id INTEGER PRIMARY KEY,
    process TEXT NOT NULL,
    stage TEXT NOT NULL,
    since_ns INTEGER NOT NULL,
    until_ns INTEGER NOT NULL,
    dropped INTEGER NOT NULL
) STRICT;
CREATE INDEX losses_by_time ON losses (until_ns);
"""
"""Times without `offset` are Unix nanoseconds; what is inside a blob are readings."""


def open_file(path: Path) -> sqlite3.Connection:
    """Open the file with mode 0600; replace one of another version, or one that is damaged.

    Raises:
        sqlite3.Error: it cannot be made, or somebody else holds it.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return _connect(path)
    except OSError as error:
        raise sqlite3.OperationalError(f"{path.name}: {error.strerror}") from error
    except sqlite3.OperationalError:
        raise  # locked, full, read-only: that passes, and the content is good
    except sqlite3.DatabaseError:
        for suffix in ("", "-wal", "-shm"):
            path.with_name(path.name + suffix).unlink(missing_ok=True)
        return _connect(path)


def _connect(path: Path) -> sqlite3.Connection:
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    connection = sqlite3.connect(path, timeout=BUSY_S)
    try:
        _migrate(connection)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = OFF")  # traces may be lost with the machine
        connection.execute("PRAGMA journal_size_limit = 4194304")
    except BaseException:
        connection.close()
        raise
    return connection


def _migrate(connection: sqlite3.Connection) -> None:
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version == 0:
        connection.executescript(f"{SCHEMA} PRAGMA user_version = {VERSION};")
    elif version != VERSION:
        raise sqlite3.DatabaseError(f"version {version}, expected {VERSION}")
