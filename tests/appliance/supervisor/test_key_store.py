"""Keys: minted once, stored as digests, useless once revoked."""

import hashlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.config.key_files import BadKeyError
from appliance.config.settings import Settings
from appliance.supervisor.admin.ports import ConflictError, NotFoundError
from appliance.supervisor.admin.schemas import CreateKey
from appliance.supervisor.desired_state import VERSION, migrate
from appliance.supervisor.key_store import KeyRing


@pytest.fixture
def connection() -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(":memory:")
    migrate(connection, VERSION)
    yield connection
    connection.close()


def test_the_first_start_mints_an_inference_and_an_admin_key(connection: sqlite3.Connection):
    ring = KeyRing.open(connection, Settings())

    assert [key.scope for key in ring.minted] == ["inference", "admin"]
    for key in ring.minted:
        assert key.secret.startswith(f"qd_{key.id}_")
        found = ring.verify(key.secret.encode())
        assert found is not None
        assert (found.id, found.scope) == (key.id, key.scope)


def test_a_later_start_mints_nothing_and_knows_the_old_keys(connection: sqlite3.Connection):
    first = KeyRing.open(connection, Settings()).minted[0]

    ring = KeyRing.open(connection, Settings())

    assert ring.minted == ()
    assert ring.verify(first.secret.encode()) is not None


def test_only_digests_are_stored(connection: sqlite3.Connection):
    ring = KeyRing.open(connection, Settings(api_key=["configured-secret"]))
    minted = ring.create(CreateKey(name="ci", scope="viewer"), "local")

    dump = "\n".join(connection.iterdump())

    assert minted.secret not in dump
    assert minted.secret.split("_", 2)[2] not in dump
    assert hashlib.sha256(minted.secret.encode()).hexdigest() in dump
    assert "configured" not in dump


def test_secrets_are_long_and_differ(connection: sqlite3.Connection):
    ring = KeyRing(connection)
    secrets = {ring.create(CreateKey(), "local").secret for _ in range(20)}

    assert len(secrets) == 20
    assert all(len(secret.split("_", 2)[2]) == 32 for secret in secrets)  # 192 bits in base64


def test_configured_keys_open_their_scope_and_stop_minting(
    connection: sqlite3.Connection, tmp_path: Path
):
    path = tmp_path / "keys"
    path.write_text("# two\nfrom-file-1\n\nfrom-file-2\n")
    settings = Settings(api_key=["flag-key"], api_key_file=path, admin_key=["the-admin"])

    ring = KeyRing.open(connection, settings)

    scopes = {
        secret: found.scope
        for secret in ("flag-key", "from-file-1", "from-file-2", "the-admin", "other")
        if (found := ring.verify(secret.encode()))
    }
    assert scopes == {
        "flag-key": "inference",
        "from-file-1": "inference",
        "from-file-2": "inference",
        "the-admin": "admin",
    }
    assert ring.minted == ()
    assert {row.source for row in ring.rows()} == {"configuration"}


def test_an_admin_key_alone_still_gets_an_inference_key(connection: sqlite3.Connection):
    ring = KeyRing.open(connection, Settings(admin_key=["the-admin"]))

    assert [key.scope for key in ring.minted] == ["inference"]


def test_without_authentication_only_the_control_plane_gets_a_key(connection: sqlite3.Connection):
    ring = KeyRing.open(connection, Settings(no_auth=True))

    assert [key.scope for key in ring.minted] == ["admin"]


def test_one_key_may_not_have_two_scopes(connection: sqlite3.Connection):
    with pytest.raises(BadKeyError, match="two scopes") as refused:
        KeyRing.open(connection, Settings(api_key=["sk-CANARY"], admin_key=["sk-CANARY"]))
    assert "CANARY" not in str(refused.value)


def test_a_revoked_key_is_useless_at_once_and_stays_listed(connection: sqlite3.Connection):
    ring = KeyRing(connection)
    key = ring.create(CreateKey(), "local")
    changes: list[int] = []
    ring.on_change = lambda: changes.append(len(ring.records()))

    first = ring.revoke(key.id, "local")
    again = ring.revoke(key.id, "local")

    assert ring.verify(key.secret.encode()) is None
    assert first.revoked_at is not None
    assert again.revoked_at == first.revoked_at
    assert changes == [0]
    reopened = KeyRing(connection)
    assert reopened.verify(key.secret.encode()) is None
    assert reopened.rows()[0].revoked_at == first.revoked_at


def test_what_cannot_be_revoked(connection: sqlite3.Connection):
    ring = KeyRing.open(connection, Settings(api_key=["flag-key"]))

    with pytest.raises(NotFoundError, match="there is no key 'nope'"):
        ring.revoke("nope", "local")
    with pytest.raises(ConflictError, match="take it out of the configuration"):
        ring.revoke(ring.rows()[0].id, "local")


def test_an_expired_key_opens_nothing(connection: sqlite3.Connection):
    ring = KeyRing(connection)
    key = ring.create(CreateKey(expires_in_s=0.000001), "local")

    assert ring.verify(key.secret.encode()) is None
    assert ring.records() == ()


def test_gateways_get_active_keys_without_secrets(connection: sqlite3.Connection):
    ring = KeyRing.open(connection, Settings(api_key=["flag-key"]))
    key = ring.create(CreateKey(name="ci", expires_in_s=3600), "local")

    records = {record.key_id: record for record in ring.records()}

    assert records[key.id].sha256 == hashlib.sha256(key.secret.encode()).hexdigest()
    assert records[key.id].expires_at == pytest.approx(key.created_at.timestamp() + 3600, abs=0.001)
    assert len(records) == 2


@pytest.mark.parametrize(
    "secret", [b"", b"' OR 1=1--", b"\xff\xfe", b"\x00", b"x" * 1_000_000, b"qd_"]
)
def test_junk_opens_nothing(connection: sqlite3.Connection, secret: bytes):
    assert KeyRing.open(connection, Settings()).verify(secret) is None


def test_every_digest_is_compared_in_constant_time_without_early_exit(
    connection: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
):
    ring = KeyRing(connection)
    keys = [ring.create(CreateKey(), "local") for _ in range(5)]
    compared: list[tuple[int, int]] = []
    real = __import__("hmac").compare_digest

    def counting(left: bytes, right: bytes) -> bool:
        compared.append((len(left), len(right)))
        return real(left, right)

    monkeypatch.setattr("appliance.supervisor.key_store.hmac.compare_digest", counting)
    found = ring.verify(keys[0].secret.encode())

    assert found is not None
    assert compared == [(32, 32)] * 5


def test_only_a_minted_key_can_allow_content_and_it_does_so_for_good(
    connection: sqlite3.Connection,
):
    ring = KeyRing.open(connection, Settings(api_key=["flag-key"]))
    key = ring.create(CreateKey(allows_content=True), "local")

    allowing = {record.key_id for record in ring.records() if record.allows_content}
    assert allowing == {key.id}
    reopened = KeyRing(connection)
    assert [row.allows_content for row in reopened.rows()] == [True]
    assert [record.allows_content for record in reopened.records()] == [True]
