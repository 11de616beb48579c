from datetime import timedelta
from typing import Any

import pytest
from rich.cells import cell_len

from dashboard.action import EVERYWHERE, FLEET
from dashboard.actions import ACTIONS, actions_on, footer_actions
from dashboard.screens.help import help_lines
from dashboard.store.state import State, reduce
from dashboard.verbs import operation_note
from dashboard.view.chart import area, blocks
from dashboard.view.fleet import engine_rows, engines_header, fleet_summary
from dashboard.view.lines import line, plain, spread
from dashboard.view.requests import filtered, request_rows, requests_header
from dashboard.view.text import age, clean, count, meter, milliseconds, rate, short_id, size
from dashboard.view.topbar import top_line
from tests.dashboard.samples import AT, a_request, a_snapshot, an_engine, an_operation, stats

EVIL = "\x1b]52;c;ZXZpbA==\x07\x1b[2J\x9b6n\u202e\u200b[@click=app.quit]x[/]\r\nnext"


def state_with(*engines: Any, requests=(), at_s=0.0):
    snapshot = a_snapshot(engines=list(engines), requests=list(requests), stats=stats(at=AT))
    return reduce(State(), snapshot, at_s)


def engine_line(engine, width=78, now_s=0.0):
    return plain(engine_rows(state_with(engine), now_s, width)[0].line)


@pytest.mark.parametrize(
    ("shown", "wanted"),
    [
        (age(0.6), "0.6s"),
        (age(31), "31s"),
        (age(252), "4m12"),
        (age(11_040), "3h04"),
        (age(3 * 86400 + 4 * 3600), "3d04h"),
        (age(None), "\u2013"),
        (count(999), "999"),
        (count(1234), "1.2k"),
        (count(31_000), "31k"),
        (count(4_000_000), "4.0M"),
        (rate(57.34), "57.3"),
        (rate(1660), "1.7k"),
        (size(268_000_000), "268 MB"),
        (size(4_100_000_000), "4.1 GB"),
        (milliseconds(0.31), "0.3ms"),
        (milliseconds(88.4), "88ms"),
        (milliseconds(4210), "4.21s"),
        (milliseconds(31_000), "31s"),
        (short_id("req-0123456789abcdef"), "req-01234567"),
        (meter(0.5, 4), "██  "),
        (meter(1.7, 4), "████"),
        (blocks([0, 1, 2, None], 6), "  ▁▅█ "),
    ],
)
def test_numbers_are_short(shown, wanted):
    assert shown == wanted


def test_a_braille_chart_has_two_samples_a_cell_and_fills_from_the_right():
    assert area([1.0, 1.0], 3, 1) == ["  ⣿"]
    assert area([0.5, 1.0], 1, 2) == ["⢸", "⣿"]


def test_foreign_text_loses_what_could_move_the_cursor():
    text = clean(EVIL)

    assert all(character.isprintable() for character in text)
    assert "\u202e" not in text
    assert text.endswith("next")


def test_an_engine_row_has_glyph_word_load_and_memory():
    text = engine_line(an_engine(running=12, waiting=6, kv_used_ratio=0.91, tokens_per_s=2326))

    assert text.split()[:7] == ["e0", "●", "READY", "12", "6", "91▲", "2.3k"]
    assert "520 MB ████" in text


def test_a_sleeping_engine_has_its_level_and_no_load():
    text = engine_line(an_engine(state="asleep", sleep_level=2, resident_bytes=232_000_000))

    assert "☾ ASLEEP L2" in text
    assert "w wakes" in text


def test_a_starting_engine_shows_phase_and_progress():
    progress = {"done": 145, "total": 290, "unit": "bytes"}
    text = engine_line(an_engine(state="starting", phase="weights", progress=progress))

    assert "◐ STARTING" in text
    assert "weights" in text
    assert " 50%" in text
    assert "█████░░░░░" in text


def test_a_backoff_counts_down_and_a_failure_says_why():
    waiting = an_engine(
        state="backoff", next_restart_at=AT + timedelta(seconds=4), last_exit="signal 9"
    )
    assert "restart in 2.0s signal 9" in engine_line(waiting, now_s=2.0)
    assert "no such file" in engine_line(an_engine(state="failed", reason="no such file"))


def test_rows_have_one_width_whatever_the_values_are():
    engines = [an_engine("e0", model=EVIL), an_engine("engine-with-a-long-id", running=123456)]
    state = state_with(*engines, requests=[a_request(model="模型" * 20, key_id=EVIL)])
    for width in (78, 100, 118, 158):
        rows = [plain(row.line) for row in engine_rows(state, 0.0, width)]
        assert {cell_len(row) for row in rows} == {cell_len(plain(engines_header(width))) - 1}
        row = plain(request_rows(state, state.live(), 0.0, width)[0].line)
        assert cell_len(row) == cell_len(plain(requests_header(width))) - 1 <= width


def test_wide_terminals_get_more_columns():
    narrow, wide = plain(engines_header(78)), plain(engines_header(158))

    assert "PID" in wide
    assert "TREND" in wide
    assert "PID" not in narrow
    assert "KEY" in plain(requests_header(116))


def test_the_summary_counts_states():
    state = state_with(an_engine("e0"), an_engine("e1", state="asleep"))

    assert fleet_summary(state) == "2 total · 1 serving · 1 asleep"


def test_a_long_wait_is_marked():
    row = a_request(state="queued", received_at=AT - timedelta(seconds=31))
    text = plain(request_rows(state_with(requests=[row]), [row], 0.0, 78)[0].line)

    assert "31s▲" in text


def test_the_top_line_keeps_its_right_side():
    state = state_with(an_engine("e0"), an_engine("e1", state="asleep"))
    text = plain(top_line(state, "x" * 100, "local admin", 1.0, 80))

    assert len(text) == 80
    assert "LIVE 1s" in text
    text = plain(top_line(state, "here:8001", "local admin", 1.0, 80))
    assert "READY 1/2" in text


def test_spread_cuts_the_left_side():
    assert plain(spread(line("abcdef"), line("xy"), 6)) == "abc…xy"


@pytest.mark.parametrize(
    ("query", "wanted"),
    [
        ("", {"a", "b", "c"}),
        ("engine=e1", {"b"}),
        ("!engine=e1", {"a", "c"}),
        ("FAILED", {"c"}),
        ("state=done", {"b"}),
        ("smol !failed", {"a", "b"}),
        ("code=restart", {"c"}),
        ("!", {"a", "b", "c"}),
        ("nonsense=1", set()),
    ],
)
def test_the_filter_knows_words_fields_and_not(query, wanted):
    rows = [
        a_request("a"),
        a_request("b", engine="e1", state="finished"),
        a_request("c", state="failed", error_code="engine_restarted"),
    ]

    assert {row.id for row in filtered(rows, query)} == wanted


def test_the_end_of_an_operation_is_one_line():
    assert operation_note(an_operation()).text == "slept e0: freed 268 MB in 0.4s"
    woke = an_operation("wake", result={"resident_bytes": 520_000_000, "canary_ok": True})
    assert operation_note(woke).text == "woke e0: 520 MB resident in 0.4s"
    failed = an_operation(state="failed", error="drain timed out", result=None)
    assert operation_note(failed).text == "sleep e0 failed: drain timed out"
    assert operation_note(failed).is_problem


def test_no_key_does_two_things_on_one_screen():
    for screen in EVERYWHERE:
        keys = [key for action in actions_on(screen) for key in action.keys.split(",")]
        assert len(keys) == len(set(keys))


def test_the_footer_fits_and_keeps_the_way_out():
    for screen in EVERYWHERE:
        shown = footer_actions(screen, 80)
        assert sum(len(action.shown) + len(action.title) + 2 for action in shown) < 80
        assert {"help", "quit"} <= {action.id for action in shown}


def test_help_lists_every_action_within_its_frame():
    text = [plain(row) for row in help_lines(FLEET)]

    assert all(len(row) <= 75 for row in text)
    for action in ACTIONS:
        assert any(row.startswith(action.shown) and action.label in row for row in text)
