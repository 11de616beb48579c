"""What looks like a secret is taken out; what does not is left alone."""

import pytest

from engine.clock import now_ns
from engine.redaction import Redactor, known_secrets

SECRET = "s3cr3t-value"


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("key qd_0a1b2c3d4e_AbC-_dEf123456 failed", "key qd_*** failed"),
        ("header: Authorization: Bearer abc.def-123", "header: Authorization: Bearer ***"),
        ("{'authorization': 'Bearer abc.def-123'}", "{'authorization': 'Bearer ***'}"),
        ("authorization=Basic dXNlcjpwdw==", "authorization=Basic ***"),
        ("[(b'authorization', b'Bearer abcdef123')]", "[(b'authorization', b'Bearer ***')]"),
        ("x-api-key: abc, next", "x-api-key: ***, next"),
        ('{"api_key": "abc", "n": 1}', '{"api_key": "***", "n": 1}'),
        ("password=hunter2&x=1", "password=***&x=1"),
        ("POST https://me:pw@host/v1", "POST https://***@host/v1"),
        ("sk-abcdefghijklmnop1234", "sk-***"),
        (
            "-----BEGIN RSA PRIVATE KEY-----\nabc\n-----END RSA PRIVATE KEY-----",
            "*** (a private key)",
        ),
    ],
)
def test_secrets_are_found_by_their_shape(text: str, clean: str):
    assert Redactor()(text) == clean


@pytest.mark.parametrize(
    "text",
    [
        "key 0a1b2c3d4e (viewer) created by local",
        "max_tokens=16, token: 5",
        "the bearer of this",
        "basic auth",
        "GET http://127.0.0.1:8000/v1/models",
        "secret",
        "api_key",
    ],
)
def test_what_is_no_secret_stays(text: str):
    assert Redactor()(text) == text


def test_a_long_text_costs_time_in_proportion_to_its_length():
    text = "a.b-" * 50_000  # a scheme that never ends
    start_ns = now_ns()

    assert Redactor()(text) == text
    assert now_ns() - start_ns < 2_000_000_000


def test_known_secrets_are_found_by_their_value_longest_first():
    redact = Redactor(["hunter22", "hunter22-long", "abc"])
    assert redact("hunter22-long hunter22 abc") == "*** *** abc", "short ones would ruin texts"
    redact.learn([SECRET])
    assert redact(f"x{SECRET}x") == "x***x"


def test_a_value_that_is_a_secret_is_known_whatever_its_shape():
    redact = Redactor(["plain-key"])
    assert redact.knows("plain-key")
    assert redact.knows("http://me:pw@proxy:3128")
    assert not redact.knows("/usr/bin:/plain-key/bin"), "half of a path may be a poor key"


def test_the_collectors_secrets_are_known():
    environment = {
        "OTEL_EXPORTER_OTLP_HEADERS": "authorization=Bearer%20abcd1234,x-tenant=acme-corp",
        "OTEL_EXPORTER_OTLP_TRACES_HEADERS": "k=trace-key",
        "OTEL_SERVICE_NAME": "x=y",
    }
    found = known_secrets(environment, ["https://me:endpoint-pw@otel", None, "http://otel"])
    assert {"Bearer abcd1234", "abcd1234", "acme-corp", "trace-key", "endpoint-pw"} == set(found)
