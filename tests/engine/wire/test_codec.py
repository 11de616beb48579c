"""Every message survives the wire; nothing else gets through."""

import msgspec
import pytest

from engine.wire.addresses import check_run_dir, engine_identity, parse_identity
from engine.wire.calls import Sleep
from engine.wire.codec import ENGINE_CODEC, UndecodableError
from engine.wire.header import Header
from engine.wire.hops import HopLink, HopReceived, HopSent, StepRecord
from engine.wire.messages import (
    TYPE_BYTES,
    AddRequest,
    EngineOutputs,
    EngineRecords,
    FinishReason,
    RequestOutput,
    SamplingParams,
    Timeline,
    TokenLogprob,
    TokenLogprobs,
    UtilityCall,
)
from engine.wire.sockets import is_probe, split

HEADER = Header(1, 3, "e0", 3, 7, "a" * 32, "b" * 16, 1, 42)
REQUEST = AddRequest(
    request_id="r",
    prompt_token_ids=(1, 2),
    sampling=SamplingParams(max_tokens=3, seed=2**63 - 1, top_k=4, logprobs=2),
    arrival_ns=1,
)
OUTPUTS = EngineOutputs(
    step=9,
    outputs=(
        RequestOutput(
            request_id="r",
            new_token_ids=(5,),
            logprobs=(
                TokenLogprobs(
                    token_id=5, logprob=-1.5, top=(TokenLogprob(token_id=5, logprob=-1.5),)
                ),
            ),
            finish_reason=FinishReason.STOP,
            stop_token_id=5,
            timeline=Timeline(received_ns=1, preempted_ns=(4,)),
        ),
    ),
)
RECORDS = EngineRecords(
    hops=(
        HopSent(
            "e0",
            1,
            2,
            "EngineOutputs",
            "gateway-0",
            "a",
            "b",
            None,
            0,
            1,
            2,
            3,
            (HopLink("r", HEADER.context),),
        ),
        HopReceived("gateway-0", 1, 2, "AddRequest", "e0", 1, 2, 3, 0),
    ),
    steps=(StepRecord("e0", 1, 1, "a", "b", 1, 2, 3, 4, 5, 6, 7, 8, 0),),
    dropped=0,
)


@pytest.mark.parametrize(
    "body",
    [REQUEST, OUTPUTS, RECORDS, UtilityCall(call_id="c", deadline_ns=1, call=Sleep(level=2))],
    ids=lambda body: type(body).__name__,
)
def test_a_message_survives_the_round_trip(body: object):
    incoming = split(ENGINE_CODEC.encode(HEADER, body), ENGINE_CODEC)

    assert incoming.header == HEADER
    assert incoming.body == body


def test_type_bytes_are_unique():
    assert len(set(TYPE_BYTES.values())) == len(TYPE_BYTES)


def test_an_older_peer_that_lacks_new_fields_is_understood():
    short = msgspec.msgpack.encode(["r", [1, 2], [3], 1])

    body = ENGINE_CODEC.decode_body(TYPE_BYTES[AddRequest], short)

    assert isinstance(body, AddRequest)
    assert body.sampling == SamplingParams(max_tokens=3)


@pytest.mark.parametrize(
    ("type_byte", "body"),
    [
        (b"\x00", b""),
        (b"\x00", b"\xc0"),
        (b"\x00", msgspec.msgpack.encode(["r", "not tokens", [3], 1])),
        (b"\x00", msgspec.msgpack.encode(["r", [1], [3.5], 1])),
        (b"\x00", msgspec.msgpack.encode(["r", [1], [3], 1]) + b"trailing"),
        (b"\x02", msgspec.msgpack.encode(["c", 1, {"type": "__class__"}])),
        (b"\x02", msgspec.msgpack.encode(["c", 1, {"type": "Sleep", "level": 9}])),
        (b"\x7e", b"\xc0"),
        (b"", b"\xc0"),
        (b"\x00", b"\x91" * 10_000),
        (b"\x00", b"\xd9\xff" + b"\xff" * 255),
    ],
)
def test_what_is_not_a_message_is_undecodable(type_byte: bytes, body: bytes):
    with pytest.raises(UndecodableError):
        ENGINE_CODEC.decode_body(type_byte, body)


def test_identities_name_engine_and_epoch():
    assert parse_identity(engine_identity("e-1", 12)) == ("e-1", 12)
    with pytest.raises(ValueError, match="not an identity"):
        parse_identity(b"e0")


def test_a_probe_is_an_identity_and_an_empty_frame():
    assert is_probe([b"e0-1", b""])
    assert not is_probe([b"e0-1", b"\x10", b"", b""])


def test_a_run_directory_that_is_too_long_is_refused(tmp_path):
    check_run_dir(tmp_path.__class__("/tmp/q"))
    with pytest.raises(ValueError, match="too long"):
        check_run_dir(tmp_path / ("x" * 100))
