"""Why, promises, moments, journals: what the screens are made of."""

from datetime import UTC, datetime, timedelta

import pytest
from rich.cells import cell_len

from appliance.supervisor.admin.schemas import (
    BurnRate,
    EngineRow,
    Evidence,
    FlightEvent,
    Problem,
    StackDump,
)
from dashboard.client.insight import LogQuery
from dashboard.client.problems import ApiProblem, UnreachableError
from dashboard.store.records import Records
from dashboard.store.state import State, reduce
from dashboard.view.engine import (
    engine_lines,
    flight_events,
    flight_summary,
    flight_title,
    step_rows,
)
from dashboard.view.explain import against, excess, too_few, unexplained, why_rows
from dashboard.view.journal import (
    entry_of_audit,
    entry_of_event,
    entry_of_line,
    fits,
    journal_rows,
    log_query,
)
from dashboard.view.lines import plain
from dashboard.view.moment import AskedMoment, moment_rows, read_time
from dashboard.view.operations import operation_rows, profile_rows
from dashboard.view.page import profile_page, stacks_page
from dashboard.view.slo import promise, slo_badge, slo_line, slo_table
from dashboard.view.telemetry import SETTINGS, read_amount, telemetry_rows, value_of
from dashboard.view.topbar import top_line
from dashboard.view.waterfall import CRITICAL, POINTER, Waterfall
from tests.dashboard.insight_samples import (
    a_flight,
    a_line,
    a_moment,
    a_profile,
    a_step,
    an_audit_entry,
    an_explanation,
    an_slo,
    settings,
)
from tests.dashboard.samples import (
    AT,
    a_snapshot,
    a_trace,
    an_engine,
    an_event,
    an_operation,
    stats,
)

NOW = datetime(2026, 1, 5, 14, 25, 30, tzinfo=UTC)
WIDTHS = (40, 77, 118, 158)


def texts(rows):
    return [plain(row.line) for row in rows]


def test_causes_say_cost_share_confidence_and_evidence():
    text = "\n".join(texts(why_rows(an_explanation(), 100).rows))

    assert "▲ queue +36ms 80% sure: waited 40 ms in the queue" in text
    assert "· long prefill beside +9.0ms 20% weak" in text
    assert "└ 8 requests were in the batch" in text
    assert "→ add an engine" in text


def test_phases_stand_beside_the_median_and_far_ones_are_marked():
    rows = texts(why_rows(an_explanation(), 77).rows)

    queue = next(row for row in rows if row.startswith(" queue"))
    assert queue.split()[:5] == ["queue", "40ms", "3.6ms", "9.0ms", "11.1▲"]
    assert "▲" not in next(row for row in rows if row.startswith(" decode"))


@pytest.mark.parametrize("width", WIDTHS)
def test_no_row_of_an_explanation_is_wider_than_its_panel(width):
    long = an_explanation(verdict="slow " * 60)

    assert all(cell_len(row) <= max(width, 50) for row in texts(why_rows(long, width).rows))


def test_a_cause_points_at_its_spans_and_a_phase_at_those_of_its_name():
    why = why_rows(an_explanation(), 77)

    assert why.spans["cause:0"] == {"queue"}
    assert why.spans["cause:1:0"] == {"prefill"}
    assert why.phases["phase:decode"] == "decode"
    assert len({row.key for row in why.rows}) == len(why.rows)


def test_without_a_cohort_it_says_that_there_is_too_little_to_compare():
    phases = [phase.model_copy(update={"median_ms": None}) for phase in an_explanation().phases]
    lonely = an_explanation(cohort_size=2, phases=phases, causes=[], excess_ms=None)

    assert too_few(lonely)
    assert "Too few requests to compare with: 2." in " ".join(texts(why_rows(lonely, 77).rows))
    assert excess(lonely) == "why"


def test_lost_records_are_admitted():
    rows = texts(why_rows(an_explanation(complete=False), 77).rows)

    assert any("Some records of its time were lost" in row for row in rows)
    assert against(an_explanation()) == "against 212 requests of smollm2 in the last hour"


def refused(status, code):
    return ApiProblem(Problem(title="t", status=status, code=code, detail="d"))


def test_why_there_is_no_explanation_is_told_apart():
    gone = unexplained(refused(404, "not_found"))
    assert "not stored any more" in gone.note
    assert not gone.is_final
    assert "older than this dashboard" in unexplained(refused(404, "no_such_route")).note
    assert unexplained(refused(500, "internal_error")).note == "d (internal_error)"
    assert unexplained(UnreachableError("gone away")).note == "gone away"


def test_the_critical_path_and_marked_spans_show_without_colour():
    waterfall = Waterfall(
        a_trace(), 78, critical=frozenset({"queue"}), marked=frozenset({"prefill"})
    )
    rows = {row.key: plain(row.line) for row in waterfall.rows(frozenset())}

    assert CRITICAL in rows["queue"]
    assert CRITICAL not in rows["auth"]
    assert POINTER in rows["prefill"]
    assert POINTER not in rows["queue"]
    assert {cell_len(row) for row in rows.values()} == {77}


def test_a_marked_message_is_found_in_its_fold():
    waterfall = Waterfall(a_trace(), 78)

    assert waterfall.find(frozenset({"send2"}), frozenset()) == "messages:decode"
    assert waterfall.find(frozenset({"nothing"}), frozenset()) is None


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ("ok", "SLO ✓ ok"),
        ("burning", "SLO ▲ burning"),
        ("paging", "SLO ✗ PAGING"),
        ("broken", "SLO ✗ BROKEN"),
        ("unknown", "SLO · too few"),
    ],
)
def test_the_top_line_names_the_worst_promise_in_words(state, words):
    slos = [an_slo("tpot", "unknown"), an_slo("ttft", state)]
    snapshot = a_snapshot(stats=stats(slos=slos))
    state = reduce(State(), snapshot, 0.0)

    for width in (80, 160):
        text = plain(top_line(state, "127.0.0.1:8001", "local admin", 0.0, width))
        assert words in text
        assert "local admin" in text
        assert cell_len(text) == width
    assert slo_badge([]).text == ""


def test_promises_in_one_line_the_worst_first():
    promises = [an_slo(), an_slo("availability", "broken", budget_left=-0.2)]
    text = plain(slo_line(promises, 100))

    assert text.index("avail ✗ BROKEN 20% over") < text.index("TTFT ✓ ok 55% left")
    for width in range(36, 100):
        assert cell_len(plain(slo_line(promises, width))) <= width
    assert plain(slo_line(promises, 36)) == " SLO  avail ✗ BROKEN  TTFT ✓ ok"


@pytest.mark.parametrize("width", WIDTHS[1:])
def test_the_table_of_promises_has_budget_and_burn(width):
    burn = [BurnRate(window="1h", rate=16.0), BurnRate(window="5m", rate=None)]
    rows = [plain(row) for row in slo_table([an_slo(state="paging", burn=burn)], width)]

    for words in ("TTFT ≤500ms 99%", "55% left", "16.0x", "✗ PAGING", "99.55%"):
        assert words in rows[1]
    assert promise(an_slo("availability", objective=0.999)) == "availability 99.9%"
    assert all(cell_len(row) <= width for row in rows)


def test_a_time_is_read_as_people_write_it():
    local = NOW.astimezone()
    at = read_time("14:22:31", NOW)
    assert at == local.replace(hour=14, minute=22, second=31) or at < NOW
    past = (local - timedelta(minutes=3)).replace(second=0)
    middle = past + timedelta(seconds=30)
    assert read_time(f"{past:%H:%M}", NOW) == middle, "the whole minute is meant"
    assert AskedMoment(middle).told == f"{past:%H:%M}:00 to {past + timedelta(minutes=1):%H:%M}:00"
    assert read_time("5m", NOW) == NOW - timedelta(minutes=5)
    assert read_time("-2h", NOW) == NOW - timedelta(hours=2)
    assert read_time("90s ago", NOW) == NOW - timedelta(seconds=90)
    assert read_time("2026-01-05T12:00+00:00", NOW) == AT
    assert read_time(f"{past:%Y-%m-%dT%H:%M}", NOW) == middle
    for text in ("", "soon", "25:00", "14:99", "14"):
        assert read_time(text, NOW) is None


def test_a_clock_time_that_is_still_to_come_was_yesterday():
    later = (NOW.astimezone() + timedelta(minutes=10)).strftime("%H:%M")

    assert read_time(later, NOW) < NOW
    assert NOW - read_time(later, NOW) < timedelta(days=1)


def test_a_moment_reads_from_the_most_telling_to_the_rows():
    rows = moment_rows(a_moment(), 78)
    text = "\n".join(texts(rows))

    assert "· e1 died of signal 9; 3 requests failed with it." in text
    assert "41  38 finished, 3 failed" in text
    assert "p50 210ms ▲" in text
    assert "busy 82%" in text
    assert "its engine died" in text
    assert "e1 was killed" in text
    assert [row.key for row in rows if row.key] == [a_moment().slowest[0].request_id]


def test_the_filter_knows_words_levels_processes_kinds_and_not():
    warned = entry_of_line(a_line(2, "drained slowly", level="warning", process="e0"))

    for query in ("", "slow", "level=info", "level=warn", "process=e0", "!fast", "!process=e1"):
        assert fits(warned, query), query
    for query in ("fast", "level=error", "process=e1", "!slow", "!level=warning", "slow fast"):
        assert not fits(warned, query), query
    assert fits(entry_of_event(an_event()), "kind=engine subject=e0")
    assert not fits(entry_of_event(an_event()), "kind=gateway")


def test_the_server_is_asked_for_what_it_can_sort_out():
    query = log_query("level=warn process=e0 slow !fast kind=core", {"e0"}, after_id=7)

    assert (query.min_level, query.process, query.contains, query.after_id) == (
        "warning", "e0", "slow", 7
    )  # fmt: skip
    assert log_query("") == LogQuery()
    assert log_query("gate process=e", {"e0", "gateway-0"}) == LogQuery(), "part of a name"


def test_every_kind_of_record_is_one_line_that_fits():
    entries = [
        entry_of_event(an_event(text="x" * 300)),
        entry_of_line(a_line(text="y" * 300)),
        entry_of_audit(an_audit_entry(status=403, actor="eve")),
    ]

    rows = texts(journal_rows(entries, 76))
    assert all(cell_len(row) <= 76 for row in rows)
    assert "WARN" in rows[2]
    assert "403 POST /engines/e0/sleep" in rows[2]


def test_records_come_once_in_order_and_are_bounded():
    records = Records[str](keep=3)
    records.add([(3, "c"), (1, "a")])
    records.add([(2, "b"), (3, "again"), (4, "d")])

    assert records.entries() == ["b", "c", "d"]
    assert records.last_id == 4


def test_operations_and_profiles_tell_progress_and_files():
    running = an_operation(
        "profile",
        state="running",
        ended_at=None,
        result=None,
        progress={"done": 5, "total": 20, "unit": "steps"},
        phase="recording",
    )
    state = reduce(State(), a_snapshot(operations=[running, an_operation(id="op-0")]), 0.0)
    text = "\n".join(texts(operation_rows(state, 0.0, 118)))

    for words in ("◑ running", " 25% ██", "recording", "✓ done", "freed_bytes 268M"):
        assert words in text
    failed = a_profile(state="failed", files=[], error="the engine died")
    text = "\n".join(texts(profile_rows([a_profile(), failed], 118)))
    assert "17 MB" in text
    assert "rank0.json.gz, merged.json.gz" in text
    assert "✗ failed" in text
    assert "the engine died" in text


def test_a_profile_says_how_to_get_and_open_it():
    text = "\n".join(plain(row) for row in profile_page(a_profile()).lines)

    assert "20 steps, steps 100 to 119" in text
    assert "quarterdeck profile get prof-1" in text
    assert "ui.perfetto.dev" in text
    running = profile_page(a_profile(state="running", files=[]))
    assert "its files come when it ends" in "\n".join(plain(row) for row in running.lines)


def test_stacks_keep_their_indentation_and_lose_their_escapes():
    dump = StackDump(engine="e0", pid=7, tool="py-spy", text="Thread 7\n    f (a.py:1)\x1b[2J\n")
    page = stacks_page(dump)

    assert [plain(row) for row in page.lines] == [" Thread 7", "     f (a.py:1)[2J"]
    assert page.title == "stacks of e0 · pid 7"


def test_telemetry_shows_settings_collector_and_losses():
    text = "\n".join(texts(telemetry_rows(settings())))

    for words in (
        "recording           ● on", "content             ○ off", "0.1", "✗ failing",
        "connection refused", "7 failed, 2 dropped", "▲ 12  e0: hops", "12k facts in 4.0 MB",
    ):  # fmt: skip
        assert words in text
    quiet = settings(collector=None, drops=[], stored_spans=None)
    text = "\n".join(texts(telemetry_rows(quiet)))
    assert "none is configured" in text
    assert "✓ none" in text
    assert {setting.name for setting in SETTINGS if value_of(quiet, setting) is None} == set()


def test_amounts_are_taken_within_their_range():
    ratio, slowest = SETTINGS[2], SETTINGS[3]

    assert read_amount(ratio, "0.25") == 0.25
    assert [read_amount(ratio, text) for text in ("1.1", "-0.1", "x", "nan", "")] == [None] * 5
    assert read_amount(slowest, "12") == 12
    assert [read_amount(slowest, text) for text in ("1.5", "1001", "-1", "inf")] == [None] * 4


def test_the_step_that_an_engine_died_in_stands_out():
    dying = a_step(89, finished=False, stage="forward", took_ms=None)
    report = a_flight(alive=False, last_exit="signal 9", steps=[dying, a_step(88)])
    rows = texts(step_rows(report, 118))

    assert "✗ forward" in rows[0]
    assert "done" in rows[1]
    running = texts(step_rows(a_flight(steps=[dying]), 118))
    assert "▶ forward" in running[0], "an engine that lives is in a step too"
    assert flight_title(report) == "last steps · epoch 1 · dead: signal 9"
    assert "median 61ms" in plain(flight_summary(report, 78))
    events = [FlightEvent(at=AT, kind="b", text="2"), FlightEvent(at=AT, kind="a", text="1")]
    told = [
        plain(row) for row in flight_events(a_flight(alive=False, events=events, log_tail=["!"]), 9)
    ]
    assert [row[-1] for row in told] == ["1", "2", "!"], "newest last, and the last words"
    assert "no step" in plain(flight_summary(a_flight(steps=[]), 78))


def test_evidence_has_its_value_once():
    told = [
        Evidence(text="prompt tokens of others", value=1536, unit="tokens", cohort_median=3),
        Evidence(text="waited 1.8 s for its engine to wake", value=1836.0, unit="ms"),
        Evidence(text="time in the queue", value=2100.0, unit="ms", cohort_median=190.0),
    ]
    cause = an_explanation().causes[0].model_copy(update={"evidence": told})

    rows = texts(why_rows(an_explanation(causes=[cause]), 100).rows)
    text = "\n".join(rows)

    assert "└ prompt tokens of others: 1,536 (median 3)" in text
    assert "└ waited 1.8 s for its engine to wake\n" in text
    assert "└ time in the queue: 2.10s (median 190ms)" in text


def facts_of(engine: EngineRow, width: int = 77) -> list[str]:
    state = reduce(State(), a_snapshot(engines=[engine]), 0.0)
    return [plain(row) for row in engine_lines(state, engine, 0.0, width)]


def test_an_engine_says_what_computes_and_how_weights_and_keys_are_kept():
    engine = an_engine(
        dtype="bfloat16",
        kernel_backend="cpu",
        kernel_path="avx512-bf16",
        quantization="w4",
        kv_cache_dtype="bfloat16",
        num_threads=2,
    )

    (kernels,) = (row for row in facts_of(engine) if row.startswith(" kernels"))
    assert kernels.rstrip() == " kernels   avx512-bf16 on 2 threads  weights w4  KV bfloat16"
    assert len(facts_of(engine)) == 6, "all of it and the steps below fit into 24 lines"


def test_an_engine_on_the_slower_kernels_says_why():
    engine = an_engine(kernel_backend="reference", kernel_path="torch", kernel_reason="no library")

    assert " why slow  no library" in facts_of(engine)


def test_an_engine_says_where_its_steps_and_its_start_took_time():
    engine = an_engine(
        step_parts={"schedule": 0.004, "forward": 0.96, "sample": 0.036},
        start_phases={"import": 7.7, "kv_cache": 0.02, "weights": 3.7},
    )
    text = "\n".join(
        plain(row)
        for row in engine_lines(reduce(State(), a_snapshot(engines=[engine]), 0.0), engine, 0.0, 77)
    )

    assert "schedule 0.4%  forward 96%  sample 3.6%" in text
    assert "import 7.7s  weights 3.7s  in all 11s" in text


@pytest.mark.parametrize("width", [79, 99, 159])
def test_the_top_line_leaves_out_what_does_not_fit(width):
    state = reduce(State(), a_snapshot(stats=stats(slos=[an_slo(state="broken")])), 0.0)

    text = plain(top_line(state, "127.0.0.1:8001", "local admin", 0.0, width))

    assert cell_len(text) == width
    assert "…" not in text
