"""Where spans go: settings and OpenTelemetry's variables, without showing a secret."""

from importlib import util
from pathlib import Path

import pytest

from appliance.config.errors import ConfigError
from appliance.config.otlp import check_otlp, otlp_options
from appliance.config.sources import load_settings

P = "OTEL_EXPORTER_OTLP_"
HTTP = "http/protobuf"


@pytest.mark.parametrize(
    ("endpoint", "url"),
    [
        ("http://otel:4318", "http://otel:4318/v1/traces"),
        ("http://otel:4318/", "http://otel:4318/v1/traces"),
        ("http://otel:4318/v1/traces", "http://otel:4318/v1/traces"),
        ("https://otel/base", "https://otel/base/v1/traces"),
        ("http://me:pw@otel:4318/?k=v", "http://otel:4318/v1/traces?k=v"),
        ("http://[::1]:4318", "http://[::1]:4318/v1/traces"),
    ],
)
def test_a_base_url_gets_the_path_of_traces(endpoint: str, url: str):
    options = otlp_options(endpoint, HTTP, {})

    assert options.url == url
    assert options.tls is endpoint.startswith("https")
    assert "pw" not in repr(options)
    assert options.shown == url.split("?")[0]


def test_the_endpoint_for_traces_is_taken_as_it_is():
    env = {P + "TRACES_ENDPOINT": "http://otel/in", P + "ENDPOINT": "http://other"}
    loaded = load_settings({}, env=env, cwd=Path("/"), user_config=None, system_config=None)

    assert loaded.settings.otlp_endpoint == "http://otel/in"
    assert loaded.origins["otlp_endpoint"] == P + "TRACES_ENDPOINT"
    assert otlp_options("http://otel/in", HTTP, env).url == "http://otel/in"


def test_the_protocol_comes_from_opentelemetry_too():
    env = {P + "PROTOCOL": "grpc"}
    loaded = load_settings({}, env=env, cwd=Path("/"), user_config=None, system_config=None)

    assert (loaded.settings.otlp_protocol, loaded.origins["otlp_protocol"]) == (
        "grpc",
        P + "PROTOCOL",
    )
    with pytest.raises(ConfigError, match=r"OTEL_EXPORTER_OTLP_PROTOCOL = 'http/json': allowed"):
        load_settings(
            {},
            env={P + "PROTOCOL": "http/json"},
            cwd=Path("/"),
            user_config=None,
            system_config=None,
        )


@pytest.mark.parametrize(
    ("endpoint", "env", "target", "tls"),
    [
        ("http://otel:4317", {}, "otel:4317", False),
        ("https://otel:4317", {}, "otel:4317", True),
        ("http://otel", {}, "otel:4317", False),
        ("https://otel", {}, "otel", True),
        ("http://[::1]", {}, "[::1]:4317", False),
        ("otel:4317", {}, "otel:4317", True),
        ("otel:4317", {P + "INSECURE": "true"}, "otel:4317", False),
        ("https://otel:4317", {P + "INSECURE": "true"}, "otel:4317", True),
    ],
)
def test_grpc_takes_host_and_port(endpoint: str, env: dict, target: str, tls: bool):
    options = otlp_options(endpoint, "grpc", env)

    assert (options.url, options.tls) == (target, tls)


def test_variables_for_traces_win_over_general_ones(tmp_path: Path):
    authority = tmp_path / "ca.pem"
    authority.write_text("x")
    env = {
        P + "HEADERS": "a=1",
        P + "TRACES_HEADERS": "X-Key=v%3D2, other = b",
        P + "TIMEOUT": "9000",
        P + "TRACES_TIMEOUT": "2500",
        P + "COMPRESSION": "gzip",
        P + "CERTIFICATE": str(authority),
    }
    options = otlp_options("http://otel", HTTP, env)

    assert options.headers == (("x-key", "v=2"), ("other", "b"))
    assert (options.timeout_s, options.gzip, options.certificate) == (2.5, True, authority)


def test_what_cannot_be_understood_is_ignored_with_a_warning(caplog: pytest.LogCaptureFixture):
    env = {
        P + "HEADERS": "CANARY-1,good=1,bad name=CANARY-2,line=a%0AB",
        P + "TIMEOUT": "10",
        P + "CERTIFICATE": "/no/such.pem",
    }
    options = otlp_options("http://otel", HTTP, env)

    assert options.headers == (("good", "1"),)
    assert (options.timeout_s, options.certificate) == (5.0, None)
    assert len(caplog.records) == 5
    assert "CANARY" not in caplog.text


@pytest.mark.parametrize(
    "endpoint", ["otel:4318", "ftp://otel", "http://", "http://me:CANARY@", "http://otel:port"]
)
def test_an_endpoint_that_is_no_url_is_refused_without_its_credentials(endpoint: str):
    with pytest.raises(ConfigError, match="otlp_endpoint") as refused:
        check_otlp(endpoint, HTTP)

    assert "CANARY" not in str(refused.value)


def test_grpc_without_its_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    found = util.find_spec
    monkeypatch.setattr(
        "appliance.config.otlp.find_spec", lambda name: None if name == "grpc" else found(name)
    )
    with pytest.raises(ConfigError, match="grpcio is missing") as refused:
        check_otlp("http://otel:4317", "grpc")

    assert refused.value.hint is not None
    assert "pip install 'quarterdeck[otlp-grpc]'" in refused.value.hint
