"""What the terminal shows at the start."""

import json
import shlex
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from appliance.config.paths import state_dir
from appliance.supervisor.admin.schemas import CreatedKey, EngineRow, Progress, Scope
from appliance.supervisor.start_card import StartFacts, start_card
from appliance.supervisor.start_progress import StartProgress

STATE = Path("/var/lib/my state")


def key(scope: Scope) -> CreatedKey:
    return CreatedKey(
        id="k", name="", scope=scope, created_at=datetime.now(UTC), secret=f"qd_{scope}_secret"
    )


def facts(**changes: Any) -> StartFacts:
    values = {
        "model": "smollm2",
        "data_url": "http://127.0.0.1:8000",
        "admin_url": "http://127.0.0.1:8001",
        "state_dir": STATE,
        "minted": [key("inference"), key("admin")],
        "has_auth": True,
        "executable": Path("/opt/quarterdeck"),
    }
    return StartFacts(**(values | changes))


def commands(card: str) -> list[list[str]]:
    """The lines that can be pasted."""
    lines = [line for line in card.splitlines() if line.startswith("    ")]
    return [shlex.split(line) for line in lines if not line.startswith("    - ")]


def test_the_first_start_shows_both_keys_and_a_curl_line_that_asks_for_a_capital():
    card = start_card(facts())
    curl = commands(card)[0]

    assert "qd_inference_secret" in card
    assert "qd_admin_secret" in card
    assert curl[0] == "curl"
    assert "http://127.0.0.1:8000/v1/chat/completions" in curl
    assert "Authorization: Bearer qd_inference_secret" in curl
    body = json.loads(curl[-1])
    assert body["model"] == "smollm2"
    assert "capital of Japan" in body["messages"][0]["content"]


def test_every_command_line_has_full_paths_and_survives_a_shell():
    for line in commands(start_card(facts()))[1:]:
        assert line[0] == f"QUARTERDECK_STATE_DIR={STATE}"
        assert line[1] == "/opt/quarterdeck"
    verbs = [line[2] for line in commands(start_card(facts()))[1:]]
    assert verbs == ["top", "ps", "trace", "keys"]


def test_with_an_adapter_root_the_card_says_how_to_load_an_adapter():
    card = start_card(facts(adapter_root=Path("/srv/my adapters")))

    [line] = [line for line in commands(card) if "lora" in line]
    assert line[2:] == ["lora", "load", "NAME", "/srv/my adapters/DIRECTORY"]


def test_the_default_state_directory_need_not_be_named():
    for line in commands(start_card(facts(state_dir=state_dir(env={}))))[1:]:
        assert line[0] == "/opt/quarterdeck"


@pytest.mark.parametrize("cert", [None, Path("/etc/cert.pem")])
def test_the_scrape_entry_reads_the_key_that_the_line_above_makes(cert: Path | None):
    scheme = "https" if cert else "http"
    card = start_card(facts(admin_url=f"{scheme}://127.0.0.1:8001", tls_cert=cert))
    entry = json.loads(next(x for x in card.splitlines() if x.startswith("    - ")).strip("- "))

    made = next(line for line in commands(card) if "keys" in line)
    assert entry["authorization"]["credentials_file"] == made[made.index("--out") + 1]
    assert entry["static_configs"] == [{"targets": ["127.0.0.1:8001"]}]
    assert entry.get("scheme", "http") == scheme


def test_a_later_start_shows_no_key_and_says_how_to_make_one():
    card = start_card(facts(minted=[]))

    assert "secret" not in card
    assert ["keys", "create", "--scope", "inference"] in [line[2:] for line in commands(card)]
    assert "Authorization: Bearer YOUR_KEY" in card


def test_an_open_data_plane_is_said_loudly():
    card = start_card(facts(minted=[], has_auth=False))

    assert "!! --no-auth" in card
    assert "Authorization" not in card


def test_the_certificate_is_in_the_curl_line():
    card = start_card(facts(data_url="https://127.0.0.1:8000", tls_cert=Path("/etc/cert.pem")))

    assert commands(card)[0][3:5] == ["--cacert", "/etc/cert.pem"]


def row(state: str, **changes: Any) -> EngineRow:
    return EngineRow(
        id="e0", state=state, epoch=1, model="m", device="cpu", since=datetime.now(UTC), **changes
    )


def test_a_phase_is_shown_once_and_then_at_most_once_a_quarter_and_a_second():
    progress = StartProgress()

    def weights(done: int) -> EngineRow:
        return row("starting", phase="weights", progress=Progress(done=done, total=200))

    lines = [
        progress.line(row("starting", phase="spawn"), 0.0),
        progress.line(row("starting", phase="import"), 0.1),
        progress.line(row("starting", phase="import", progress=Progress(done=0, total=1)), 1.5),
        progress.line(row("starting", phase="import", progress=Progress(done=1, total=1)), 3.0),
        progress.line(weights(1), 3.1),
        progress.line(weights(60), 3.5),
        progress.line(weights(90), 4.2),
        progress.line(weights(99), 9.0),
        progress.line(weights(170), 9.1),
        progress.line(weights(200), 11.0),
        progress.line(row("ready"), 11.1),
        progress.line(row("backoff", reason="SIGKILL"), 12.0),
    ]

    assert [line for line in lines if line] == [
        "e0: starting import",
        "e0: starting weights",
        "e0: starting weights 25 %",
        "e0: starting weights 75 %",
        "e0: ready",
        "e0: backoff (SIGKILL)",
    ]


def test_ready_is_said_once():
    progress = StartProgress()

    assert [progress.first_ready(is_ready=value) for value in (False, True, False, True)] == [
        False,
        True,
        False,
        False,
    ]
