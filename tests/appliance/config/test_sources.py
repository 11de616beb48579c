"""Where settings come from, and what is said about wrong ones."""

from pathlib import Path

import pytest

from appliance.config.errors import ConfigError
from appliance.config.sources import LoadedSettings, load_settings


def load(
    flags: dict[str, object] | None = None,
    env: dict[str, str] | None = None,
    cwd: Path = Path("/nowhere"),
    user: Path | None = None,
    system: Path | None = None,
) -> LoadedSettings:
    return load_settings(
        flags or {}, env=env or {}, cwd=cwd, user_config=user, system_config=system
    )


def test_each_source_wins_over_all_below_it(tmp_path: Path):
    system, user, named = tmp_path / "etc.toml", tmp_path / "user.toml", tmp_path / "named.toml"
    system.write_text("port = 1\nadmin_port = 11\ngateways = 2\ndrain_s = 6\nhost = 'localhost'\n")
    user.write_text("port = 2\nadmin_port = 12\ngateways = 3\ndrain_s = 5\n")
    (tmp_path / "quarterdeck.toml").write_text("port = 3\nadmin_port = 13\ngateways = 4\n")
    named.write_text("port = 4\nadmin_port = 14\n")

    loaded = load(
        {"port": 6, "config": "named.toml", "device": None},
        {"QUARTERDECK_PORT": "5"},
        tmp_path,
        user,
        system,
    )

    settings, origins = loaded.settings, loaded.origins
    assert (settings.port, origins["port"]) == (6, "--port")
    assert (settings.admin_port, origins["admin_port"]) == (14, f"{named}: admin_port")
    assert (settings.gateways, origins["gateways"]) == (
        4,
        f"{tmp_path / 'quarterdeck.toml'}: gateways",
    )
    assert (settings.drain_s, settings.host) == (5, "localhost")
    assert (settings.device, origins["device"]) == ("cpu", "default")


def test_the_environment_wins_over_files_and_reads_lists(tmp_path: Path):
    (tmp_path / "quarterdeck.toml").write_text("port = 3\n")

    loaded = load(
        env={"QUARTERDECK_PORT": "5", "QUARTERDECK_API_KEY": "one, two", "QUARTERDECK_HOST": ""},
        cwd=tmp_path,
    )

    assert (loaded.settings.port, loaded.origins["port"]) == (5, "QUARTERDECK_PORT")
    assert loaded.settings.api_key == ["one", "two"]
    assert loaded.settings.host == "127.0.0.1"


def test_the_endpoint_of_opentelemetry_is_taken_unless_ours_is_set():
    theirs = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://otel:4318"}
    loaded = load(env=theirs)

    assert loaded.settings.otlp_endpoint == "http://otel:4318"
    assert loaded.origins["otlp_endpoint"] == "OTEL_EXPORTER_OTLP_ENDPOINT"
    both = load(env={**theirs, "QUARTERDECK_OTLP_ENDPOINT": "http://ours:4318"})
    assert both.settings.otlp_endpoint == "http://ours:4318"


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("512MiB", 512 << 20),
        ("1.5g", 3 << 29),
        ("2GB", 2_000_000_000),
        ("4194304", 4 << 20),
        ("64 m", 64 << 20),
    ],
)
def test_sizes_may_have_suffixes(text: str, size: int):
    assert load({"kv_cache_bytes": text}).settings.kv_cache_bytes == size


def test_lengths_may_have_suffixes_and_automatic_ones_be_named():
    loaded = load({"max_model_len": "4k", "dtype": "auto", "kv_cache_bytes": "auto"})

    assert loaded.settings.max_model_len == 4096
    assert loaded.settings.dtype is None
    assert loaded.settings.kv_cache_bytes is None


def test_engines_is_a_number_or_tables(tmp_path: Path):
    assert load({"engines": 3}).settings.num_engines == 3
    assert load(env={"QUARTERDECK_ENGINES": "2"}).settings.num_engines == 2

    (tmp_path / "quarterdeck.toml").write_text(
        '[[engines]]\nmodel = "a"\nkv_cache_bytes = "1g"\n[[engines]]\nmodel = "b"\n'
    )
    engines = load(cwd=tmp_path).settings.engines
    assert [(engine.model, engine.kv_cache_bytes) for engine in engines] == [
        ("a", 1 << 30),
        ("b", None),
    ]
    with pytest.raises(ConfigError, match=r"--engines asks for 3 engines, but .* lists 2"):
        load({"engines": 3}, cwd=tmp_path)


def test_a_relative_path_in_a_file_starts_at_the_file(tmp_path: Path):
    keys = tmp_path / "conf" / "keys"
    keys.parent.mkdir()
    keys.write_text("secret-one\n")
    keys.chmod(0o600)
    user = tmp_path / "conf" / "user.toml"
    user.write_text('api_key_file = "keys"\n')

    assert load(user=user).settings.api_key_file == keys


@pytest.mark.parametrize(
    ("flags", "env", "text", "message"),
    [
        ({}, {"QUARTERDECK_PROT": "1"}, "", "QUARTERDECK_PROT: unknown setting"),
        ({}, {}, "prot = 1", "quarterdeck.toml: prot: unknown setting"),
        ({"port": "99999"}, {}, "", r"--port = '99999': allowed is a whole number from 0 to 65535"),
        ({}, {}, "on_asleep = 'nap'", "on_asleep = 'nap': allowed is wake or reject"),
        ({"device": "gpu"}, {}, "", "--device = 'gpu': allowed is cpu, cuda or cuda:N"),
        ({"device": "cuda0"}, {}, "", "--device = 'cuda0': allowed is cpu, cuda or cuda:N"),
        ({"dtype": "int8"}, {}, "", "--dtype = 'int8': allowed is bfloat16, float16, float32"),
        ({"kv_cache_bytes": "lots"}, {}, "", "--kv-cache-bytes: 'lots' is not a size such as"),
        ({"kv_cache_bytes": "1k"}, {}, "", "allowed is a whole number of at least 1048576"),
        ({}, {}, "port = true", "quarterdeck.toml: port: true is a boolean"),
        ({}, {}, "hang_s = 0", "hang_s = 0: allowed is a number above 0"),
        ({}, {}, "[[engines]]\ndtpye = 'x'", r"unknown key 'dtpye' in \[\[engines\]\]. Did you"),
        ({}, {}, "[[engines]]\ndtype = 'x'", r"engines\[0\].dtype = 'x': allowed is bfloat16"),
        ({}, {}, "port = ", "is not valid TOML"),
        ({}, {}, "api_key = ['a']", "api_key may not stand in a configuration file"),
        ({"config": "gone.toml"}, {}, "", "there is no configuration file"),
        ({"port": 8001}, {}, "", "port and admin_port are both 8001"),
        ({"policy": "fiar"}, {}, "", "--policy = 'fiar': allowed is fair, fcfs, priority"),
        (
            {"policy": "priority", "reserved_seqs": 8, "max_num_seqs": 8},
            {},
            "",
            "--reserved-seqs = 8 leaves no place for others: max_num_seqs is 8",
        ),
        (
            {"max_num_batched_tokens": "32"},
            {},
            "",
            r"--max-num-batched-tokens = 32: allowed is max_num_seqs \(64\) or more",
        ),
        ({"adapter_root": ["gone"]}, {}, "", "--adapter-root: there is no directory .*gone"),
        ({"tls_cert": "x"}, {}, "", "tls_cert and tls_key go together"),
        ({"tls_cert": "x", "tls_key": "x"}, {}, "", "there is no file"),
        ({"no_auth": True, "host": "192.0.2.7"}, {}, "", "open to everybody who reaches 192.0.2.7"),
        ({"api_key": ["sch\xf6n"]}, {}, "", "--api-key: a key is 1 to 512 visible ASCII"),
        ({"api_key_file": "gone"}, {}, "", "cannot read the key file .*gone: No such file"),
    ],
)
def test_a_wrong_setting_is_named_with_its_source_and_what_is_allowed(
    tmp_path: Path, flags: dict[str, object], env: dict[str, str], text: str, message: str
):
    (tmp_path / "quarterdeck.toml").write_text(text)

    with pytest.raises(ConfigError, match=message):
        load(flags, env, tmp_path)


def test_an_unknown_key_gets_the_nearest_name():
    with pytest.raises(ConfigError) as refused:
        load(env={"QUARTERDECK_MAX_MODEL_LENGTH": "1"})

    assert refused.value.hint == "Did you mean max_model_len?"


def test_variables_that_a_cluster_injects_are_not_ours():
    cluster = {
        "QUARTERDECK_SERVICE_HOST": "10.0.0.1",
        "QUARTERDECK_SERVICE_PORT_HTTP": "80",
        "QUARTERDECK_PORT_80_TCP_ADDR": "10.0.0.1",
    }

    assert load(env=cluster).settings.port == 8000


def test_keys_never_stand_in_what_is_shown():
    loaded = load(
        {"api_key": ["sk-CANARY-1"], "otlp_endpoint": "http://me:sk-CANARY-2@otel:4318"},
        {"QUARTERDECK_ADMIN_KEY": "sk-CANARY-3"},
    )

    assert "CANARY" not in str(loaded.shown())
    assert loaded.shown()["api_key"] == ["(redacted)"]
    assert "CANARY" not in repr(loaded.settings).replace("sk-CANARY-2", "")


def test_a_wrong_key_is_not_quoted():
    with pytest.raises(ConfigError) as refused:
        load({"api_key": ["sk-CANARY with blanks"]})

    assert "CANARY" not in str(refused.value)


def test_what_does_nothing_is_warned_about(tmp_path: Path):
    text = "tenant_weights = {a = 2.0}\n"
    (tmp_path / "quarterdeck.toml").write_text(text)
    flags = {"reserved_seqs": 2, "adapter_root": [str(tmp_path)], "max_loras": 0}

    reserved, weights, root = load(flags, {}, tmp_path).warnings

    assert reserved == "--reserved-seqs has no effect without the policy priority"
    assert "tenant_weights has no effect without the policy fair" in weights
    assert root == "--adapter-root has no effect: --max-loras is 0"


def test_clear_text_beyond_loopback_is_warned_about():
    assert load({"host": "192.0.2.7"}).warnings == (
        "the data plane on 192.0.2.7 has no TLS: keys and prompts travel as clear text",
    )
    assert load({"host": "::1", "admin_host": "127.0.0.2"}).warnings == ()


def test_a_key_file_that_others_can_read_is_warned_about(tmp_path: Path):
    keys = tmp_path / "keys"
    keys.write_text("# ours\n\nsecret-one\n")
    keys.chmod(0o644)

    assert load({"api_key_file": str(keys)}).warnings == (
        f"{keys} can be read by other users; chmod 600 it",
    )
