"""The waterfall as text: tiles line up, messages fold, nothing exceeds the width."""

from typing import Any

from appliance.cli.waterfall import draw, duration, told
from appliance.supervisor.admin.schemas import Cause, Evidence, Span, Trace
from tests.appliance.supervisor.admin.in_memory import request_row

MS = 1_000_000


def span(name: str, start_ms: float, end_ms: float, parent: str | None, **more: Any) -> Span:
    return Span(
        name=name,
        kind=more.pop("kind", "internal"),
        process=more.pop("process", "gateway-0"),
        start_ns=int(start_ms * MS),
        end_ns=int(end_ms * MS),
        span_id=more.pop("span_id", name),
        parent_id=parent,
        **more,
    )


def a_trace(outputs: int = 3) -> Trace:
    spans = [
        span("POST /v1/chat/completions", 0, 100, None, span_id="root", kind="server"),
        span("admission", 0, 10, "root"),
        span("chat m", 10, 100, "root", span_id="chat"),
        span("decode", 50, 100, "chat", process="e0"),
    ]
    for index in range(outputs):
        at_ms = 50 + index * 10
        sent = f"s{index}"
        spans += [
            span("send", at_ms, at_ms, "decode", span_id=sent, kind="producer", linked=True,
                 process="e0"),
            span("process", at_ms + 1, at_ms + 2, sent, kind="consumer", linked=True),
        ]  # fmt: skip
    return Trace(
        request=request_row("finished"), headline="TTFT 50 ms: 40 % queued", spans=spans,
        complete=True,
    )  # fmt: skip


def test_the_headline_is_first_and_every_line_fits():
    for columns in (60, 80, 160):
        lines = draw(a_trace(), columns)
        assert lines[0] == "TTFT 50 ms: 40 % queued"
        assert all(len(line) <= columns for line in lines[2:])


def test_bars_stand_where_the_time_went():
    rows = {
        line.split("  ")[0].strip() or line.split()[0]: line for line in draw(a_trace(), 80)[3:]
    }

    admission = next(line for name, line in rows.items() if name.startswith("admission"))
    decode = next(line for line in draw(a_trace(), 80) if line.strip().startswith("decode"))
    assert admission.index("█") < decode.index("█")
    assert admission.count("█") * 4 <= decode.count("█")
    assert "50.0 ms" in decode


def test_output_messages_fold_into_one_row_under_their_phase():
    lines = draw(a_trace(outputs=37), 80)

    folded = [line for line in lines if "output message" in line]
    assert len(folded) == 1
    assert folded[0].startswith("      37 output messages")
    assert "~2.0 ms" in folded[0]
    assert not any("send" in line for line in lines)


def test_one_message_is_in_the_singular():
    assert any("1 output message " in line for line in draw(a_trace(outputs=1), 80))


def test_an_empty_or_broken_trace_is_still_drawn():
    empty = a_trace().model_copy(update={"spans": []})
    assert draw(empty, 80)[-1] == "no spans"

    backwards = a_trace(0)
    backwards.spans[1].start_ns = -(10**18)
    backwards.spans[1].end_ns = 10**18
    backwards.spans[0].end_ns = backwards.spans[0].start_ns
    assert len(draw(backwards, 80)) == 7


def test_names_cannot_drive_the_terminal():
    trace = a_trace()
    trace.spans[1].name = "a\x1b]52;c;x\x07\r\nb\u202e"
    trace.headline = "\x9b2J"

    text = "\n".join(draw(trace, 80))

    assert not any(c in text for c in "\x1b\x07\r\x9b\u202e")


def test_colour_is_only_there_when_wanted():
    assert "\x1b[" not in "".join(draw(a_trace(), 80))
    assert "\x1b[" in "".join(draw(a_trace(), 80, colour=True))


def test_durations_have_the_unit_that_suits_them():
    lengths = (0, 87_000, 4_240_000, 412_000_000, 3_100_000_000)
    assert [duration(ns) for ns in lengths] == ["0 µs", "87 µs", "4.2 ms", "412 ms", "3.10 s"]


def test_evidence_has_its_value_and_what_is_usual_once():
    cause = Cause(
        kind="asleep_engine",
        text="waited 1.8 s for its engine to wake",
        cost_ms=1800.0,
        share=1.0,
        confidence="sure",
        evidence=[
            Evidence(text="waited 1.8 s for its engine to wake", value=1836.0, unit="ms"),
            Evidence(text="prompt tokens of others", value=1536, unit="tokens", cohort_median=3),
            Evidence(text="time in the queue", value=2100.0, unit="ms", cohort_median=190.0),
            Evidence(text="8 requests waited at once", value=8, unit="requests"),
        ],
    )

    assert list(told(cause)) == [
        "prompt tokens of others: 1,536 (usually 3)",
        "time in the queue: 2.10 s (usually 190 ms)",
        "8 requests waited at once",
    ]


def test_the_mark_of_the_critical_path_is_explained():
    assert any("• on the critical path" in line for line in draw(a_trace(), 100))
