"""The keys of the appliance: minted ones in SQLite as SHA-256, configured ones in memory only."""

import hashlib
import hmac
import logging
import secrets
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, cast

from appliance.config.key_files import BadKeyError, read_keys
from appliance.config.settings import Settings
from appliance.control_link.messages import KeyRecord
from appliance.supervisor.admin.ports import ConflictError, NotFoundError
from appliance.supervisor.admin.schemas import CreatedKey, CreateKey, KeyRow, Scope
from engine.log_lines import redact

logger = logging.getLogger(__name__)

FIRST_START = "first start"

_ID_BYTES = 5
_SECRET_BYTES = 24
"""192 bits: guessing is hopeless, so one fast digest is enough and no salt is needed."""

_COLUMNS = "id, name, sha256, scope, created_at, expires_at, revoked_at, allows_content"


@dataclass(frozen=True, slots=True)
class _Key:
    """One key; times are Unix seconds."""

    id: str
    name: str
    sha256: bytes
    scope: Scope
    created_at: float
    expires_at: float | None = None
    revoked_at: float | None = None
    source: Literal["store", "configuration"] = "store"
    allows_content: bool = False
    """Only minted keys can allow it: whoever makes one decides it for that key alone."""

    def is_active(self, now: float) -> bool:
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)

    def row(self) -> KeyRow:
        return KeyRow(
            id=self.id,
            name=self.name,
            scope=self.scope,
            created_at=_moment(self.created_at),
            expires_at=None if self.expires_at is None else _moment(self.expires_at),
            revoked_at=None if self.revoked_at is None else _moment(self.revoked_at),
            source=self.source,
            allows_content=self.allows_content,
        )


class KeyRing:
    """All keys; implements `appliance.supervisor.admin.ports.KeyStore`.

    Use it from the thread that opened the connection. Set `on_change` to learn that `records`
    would now answer differently.

    Args:
        connection: the state database, its `keys` table in place.
        configured: keys that live as long as this process.
    """

    def __init__(self, connection: sqlite3.Connection, configured: Iterable[_Key] = ()) -> None:
        self.on_change: Callable[[], None] | None = None
        self.minted: tuple[CreatedKey, ...] = ()
        """Keys made by `open` because there were none; their secrets are nowhere else."""
        self._connection = connection
        self._keys = {key.id: key for key in (*configured, *_stored(connection))}

    @classmethod
    def open(cls, connection: sqlite3.Connection, settings: Settings) -> "KeyRing":
        """Read the stored keys, add the configured ones, and mint the first if there are none.

        Raises:
            BadKeyError: a key file cannot be used, or one key is configured for two scopes.
        """
        ring = cls(connection, _configured(settings))
        if all(key.source == "configuration" for key in ring._keys.values()):
            ring.minted = tuple(
                ring.create(_first_key(scope), actor=FIRST_START)
                for scope in ring._scopes_to_mint(settings)
            )
        return ring

    def verify(self, secret: bytes) -> KeyRow | None:
        """Return the active key that this secret opens, or None.

        Every digest is compared, whatever came before, so the time tells nothing about a match.
        """
        digest = hashlib.sha256(secret).digest()
        found: _Key | None = None
        for key in self._keys.values():
            if hmac.compare_digest(key.sha256, digest):
                found = key
        return found.row() if found is not None and found.is_active(_now()) else None

    def rows(self) -> list[KeyRow]:
        """All keys, revoked ones included, oldest first."""
        return [key.row() for key in sorted(self._keys.values(), key=lambda key: key.created_at)]

    def records(self) -> tuple[KeyRecord, ...]:
        """The active keys, as gateways get them."""
        now = _now()
        return tuple(
            KeyRecord(
                key_id=key.id,
                name=key.name,
                sha256=key.sha256.hex(),
                scope=key.scope,
                expires_at=key.expires_at,
                allows_content=key.allows_content,
            )
            for key in self._keys.values()
            if key.is_active(now)
        )

    def create(self, body: CreateKey, actor: str) -> CreatedKey:
        """Mint a key `qd_<id>_<secret>` and store its digest; only this answer holds the secret."""
        key_id = secrets.token_hex(_ID_BYTES)
        secret = f"qd_{key_id}_{secrets.token_urlsafe(_SECRET_BYTES)}"
        now = _now()
        key = _Key(
            id=key_id,
            name=body.name,
            sha256=hashlib.sha256(secret.encode()).digest(),
            scope=body.scope,
            created_at=now,
            expires_at=None if body.expires_in_s is None else now + body.expires_in_s,
            allows_content=body.allows_content,
        )
        self._insert(key)
        self._changed(key)
        if actor != FIRST_START:  # those the start card shows
            logger.info("key %s (%s) created by %s", key.id, key.scope, actor)
        return CreatedKey(**key.row().model_dump(), secret=secret)

    def revoke(self, key_id: str, actor: str) -> KeyRow:
        """Make a key useless at once; revoking it again changes nothing.

        Raises:
            NotFoundError: there is no such key.
            ConflictError: it stands in the configuration, which would bring it back.
        """
        key = self._keys.get(key_id)
        if key is None:
            raise NotFoundError(f"there is no key {key_id!r}")
        if key.source == "configuration":
            raise ConflictError(
                "this key is configured: take it out of the configuration and restart",
                current_state="configured",
                allowed_actions=[],
            )
        if key.revoked_at is None:
            key = replace(key, revoked_at=_now())
            with self._connection:
                self._connection.execute(
                    "UPDATE keys SET revoked_at = ? WHERE id = ?", (key.revoked_at, key.id)
                )
            self._changed(key)
            logger.info("key %s revoked by %s", key.id, actor)
        return key.row()

    def _insert(self, key: _Key) -> None:
        row = (
            key.id,
            key.name,
            key.sha256.hex(),
            key.scope,
            key.created_at,
            key.expires_at,
            key.allows_content,
        )
        with self._connection:
            self._connection.execute(
                "INSERT INTO keys (id, name, sha256, scope, created_at, expires_at, allows_content)"
                " VALUES (?, ?, ?, ?, ?, ?, ?)",
                row,
            )

    def _changed(self, key: _Key) -> None:
        self._keys[key.id] = key
        if self.on_change is not None:
            self.on_change()

    def _scopes_to_mint(self, settings: Settings) -> Iterator[Scope]:
        """An open data plane needs no inference key; who configured any key needs no admin key."""
        scopes = {key.scope for key in self._keys.values()}
        if "inference" not in scopes and not settings.no_auth:
            yield "inference"
        if not scopes:
            yield "admin"


def _stored(connection: sqlite3.Connection) -> Iterator[_Key]:
    for row in connection.execute(f"SELECT {_COLUMNS} FROM keys"):  # noqa: S608 (a constant)
        key_id, name, sha256, scope, created_at, expires_at, revoked_at, allows_content = row
        yield _Key(
            id=key_id,
            name=name,
            sha256=bytes.fromhex(sha256),
            scope=scope,
            created_at=created_at,
            expires_at=expires_at,
            revoked_at=revoked_at,
            allows_content=bool(allows_content),
        )


def _configured(settings: Settings) -> list[_Key]:
    """Keys of the configuration. Their id is the start of the digest: stable over restarts."""
    sources: tuple[tuple[str, list[str], Path | None], ...] = (
        ("inference", settings.api_key, settings.api_key_file),
        ("admin", settings.admin_key, settings.admin_key_file),
    )
    now, keys = _now(), dict[bytes, _Key]()
    for scope, given, path in sources:
        for secret in (*given, *(read_keys(path) if path is not None else ())):
            redact.learn([secret])
            digest = hashlib.sha256(secret.encode()).digest()
            known = keys.setdefault(
                digest,
                _Key(
                    id=f"conf{digest[:_ID_BYTES].hex()}",
                    name=f"configured {scope}",
                    sha256=digest,
                    scope=cast("Scope", scope),
                    created_at=now,
                    source="configuration",
                ),
            )
            if known.scope != scope:
                raise BadKeyError(
                    f"one key is configured for two scopes, {known.scope} and {scope}"
                )
    return list(keys.values())


def _now() -> float:
    """Unix seconds: keys expire by the calendar, not by the time since the start."""
    return datetime.now(UTC).timestamp()


def _moment(unix_s: float) -> datetime:
    return datetime.fromtimestamp(unix_s, UTC)


def _first_key(scope: Scope) -> CreateKey:
    return CreateKey(name=f"first {scope}", scope=scope, expires_in_s=None)
