"""The promises to clients: a table in a file, one line in a flag or a variable."""

from pathlib import Path

import pytest

from appliance.config.errors import ConfigError
from appliance.config.sources import load_settings


def load(tmp_path: Path, **env: str):
    return load_settings({}, env=env, cwd=tmp_path, user_config=None, system_config=None)


def test_a_table_names_what_it_changes_and_the_rest_stays(tmp_path):
    (tmp_path / "quarterdeck.toml").write_text("[slo]\nttft_ms = 300\nttft_share = 0.99\n")

    slo = load(tmp_path).settings.slo

    assert (slo.ttft_ms, slo.ttft_share, slo.tpot_ms) == (300, 0.99, 200)


def test_a_line_says_the_same(tmp_path):
    loaded = load(tmp_path, QUARTERDECK_SLO="ttft_ms=300,ttft_share=0.99")

    assert (loaded.settings.slo.ttft_ms, loaded.settings.slo.ttft_share) == (300, 0.99)
    assert loaded.origins["slo"] == "QUARTERDECK_SLO"


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("ttft=300", "Did you mean ttft_"),
        ("availability=1", "slo.availability"),
        ("ttft_ms", "is not a list such as"),
    ],
)
def test_what_is_wrong_with_a_promise_is_said(tmp_path, line, told):
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, QUARTERDECK_SLO=line)

    assert told in f"{caught.value} {caught.value.hint or ''}".replace("QUARTERDECK_SLO.", "slo.")
