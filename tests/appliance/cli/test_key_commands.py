"""`keys create|list|revoke`."""

from pathlib import Path

import pytest

from tests.appliance.cli.conftest import Appliance, Run


def test_the_secret_alone_is_on_stdout(run: Run, appliance: Appliance):
    result = run("keys", "create", "--scope", "viewer", "--name", "grafana")

    secret = result.out.removesuffix("\n")
    found = appliance.keys.verify(secret.encode())
    assert found is not None
    assert (found.scope, found.name) == ("viewer", "grafana")
    assert secret not in result.err


def test_a_secret_in_a_file_is_ours_alone_and_nowhere_else(
    run: Run, appliance: Appliance, tmp_path: Path
):
    out = tmp_path / "prometheus.key"

    result = run("keys", "create", "--scope", "viewer", "--out", out, "-o", "json")

    secret = out.read_text().strip()
    assert appliance.keys.verify(secret.encode()) is not None
    assert out.stat().st_mode & 0o777 == 0o600
    assert secret not in result.out + result.err
    assert result.json["scope"] == "viewer"


def test_an_existing_file_is_not_overwritten_and_no_key_is_made(
    run: Run, appliance: Appliance, tmp_path: Path
):
    out = tmp_path / "key"
    out.write_text("precious")
    before = len(appliance.keys.rows())

    assert run("keys", "create", "--out", out).code == 2
    assert out.read_text() == "precious"
    assert len(appliance.keys.rows()) == before


def test_no_file_is_left_when_no_key_could_be_made(run: Run, tmp_path: Path):
    out = tmp_path / "key"

    assert run("keys", "create", "--out", out).code == 3
    assert not out.exists()


def test_keys_are_listed_without_secrets_and_revoked(run: Run, appliance: Appliance):
    listed = run("keys", "list")
    revoked = run("keys", "revoke", "k1")

    assert "viewer" in listed.out
    assert "viewer-secret" not in listed.out
    assert (revoked.code, revoked.out) == (0, "k1: revoked\n")
    assert appliance.keys.verify(b"viewer-secret") is None
    assert run("keys", "revoke", "nope").code == 1
    assert [row["id"] for row in run("keys", "list", "-o", "json").json] == ["k0", "k1", "k2", "k3"]


@pytest.mark.parametrize("arguments", [["--scope", "root"], ["--name", "a\x1b[2J"]])
def test_a_wrong_wish_is_exit_code_2(run: Run, appliance: Appliance, arguments: list[str]):
    assert run("keys", "create", *arguments).code == 2


def test_a_key_allows_content_only_when_that_is_asked_for(run: Run, appliance: Appliance):
    allowing = run("keys", "create", "--allow-content", "-o", "json").json
    plain = run("keys", "create", "-o", "json").json

    assert (allowing["allows_content"], plain["allows_content"]) == (True, False)
    assert "allowed" in run("keys", "list").out
