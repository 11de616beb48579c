from typing import Any

from dashboard.view.axis import Axis, axis_for
from dashboard.view.lines import plain
from dashboard.view.trace import attribute_lines, completeness, facts
from dashboard.view.tree import build_tree, shown_rows
from dashboard.view.waterfall import Waterfall
from tests.dashboard.samples import a_span, a_trace

GROUP = "messages:decode"
WIDTH = 78


def rows_of(trace, *toggled: str, width=WIDTH, **options: Any):
    return [plain(row.line) for row in Waterfall(trace, width, **options).rows(frozenset(toggled))]


def names_of(trace, *toggled: str):
    return [row.split("│")[0].rstrip() for row in rows_of(trace, *toggled)]


def test_the_tree_is_indented_and_messages_are_folded():
    assert names_of(a_trace()) == [
        "▾POST /v1/chat/completions",
        "  auth",
        " ▾chat smollm2",
        "   queue",
        "   prefill",
        "  ▾decode",
        "   ▸4 output messages",
        "  stream",
    ]


def test_the_fold_opens_to_every_message():
    names = names_of(a_trace(), GROUP)

    assert names[6:9] == [
        "   ▾4 output messages",
        "    ▾send EngineOutputs",
        "      process EngineOutputs",
    ]
    assert len(names) == 8 + 8


def test_a_closed_span_hides_what_is_below():
    assert names_of(a_trace(), "root") == ["▸POST /v1/chat/completions"]


def test_messages_of_a_running_request_fold_too():
    spans = [a_span("POST", 0, 10, None, span_id="r")] + [
        a_span("send EngineOutputs", at, at + 1, "r", kind="producer", span_id=str(at))
        for at in range(3)
    ]

    assert names_of(a_trace(spans=spans)) == ["▾POST", " ▸3 output messages"]


def test_own_time_is_what_the_children_leave_and_linked_ones_do_not_count():
    own = {row.split("│")[0].strip(" ▾▸"): row.split("│")[2] for row in rows_of(a_trace())}

    assert own["POST /v1/chat/completions"].split() == ["0.00", "0%"]
    assert own["queue"].split() == ["40.0", "40%"]
    assert own["decode"].split() == ["38.0", "38%"]
    assert own["4 output messages"].split() == ["8.0"]


def test_shares_of_all_spans_make_the_whole():
    phases = Waterfall(a_trace(), WIDTH).phases()

    assert round(sum(own_ms for _, own_ms in phases), 6) == 100.0
    assert phases[0] == ("queue", 40.0)


def test_all_rows_are_as_wide_as_the_header_at_both_sizes():
    for width in (78, 158):
        waterfall = Waterfall(a_trace(), width)
        cells = {len(plain(row.line)) for row in waterfall.rows(frozenset({GROUP}))}

        assert cells == {width - 1}, "one cell is left for the cursor"
        assert len(plain(waterfall.header())) == width


def test_bars_start_where_the_span_before_ended():
    rows = {row.split("│")[0].strip(): row.split("│")[1] for row in rows_of(a_trace(), linear=True)}
    queue, prefill = rows["queue"], rows["prefill"]

    assert abs(len(queue.rstrip()) - prefill.index("█")) <= 1
    assert rows["stream"].rstrip()[-1] != " "


def test_the_axis_gives_the_time_to_the_first_token_most_of_the_width():
    axis = axis_for(4000.0, 80.0, 50, linear=False)

    assert axis.split_cell == 31
    assert axis.cell(40.0) == 15.5
    assert axis.cell(4000.0) == 50
    assert "◆80ms" in axis.scale()
    assert axis.scale().endswith("4.00s")


def test_the_axis_is_linear_when_asked_or_when_the_first_token_came_late():
    assert axis_for(4000.0, 80.0, 50, linear=True).split_ms is None
    assert axis_for(100.0, 80.0, 50, linear=False).split_ms is None
    assert axis_for(100.0, None, 50, linear=False).split_ms is None


def test_the_shortest_span_leaves_a_sliver():
    assert Axis(1000.0, 20).bar(999.99, 1000.0).strip() == "▏"
    assert Axis(0.0, 20).bar(0.0, 0.0).strip() == "▏"


def test_a_span_without_a_known_parent_hangs_below_the_root():
    spans = [*a_trace().spans, a_span("lost", 5, 6, "nobody")]

    assert " lost" in "\n".join(names_of(a_trace(spans=spans)))


def test_a_ring_of_parents_does_not_hang():
    spans = [a_span("a", 0, 1, "b"), a_span("b", 0, 1, "a")]

    assert [shown.node.label for shown in shown_rows(build_tree(spans), frozenset())] == ["a", "b"]


def test_a_very_deep_trace_does_not_end_the_dashboard():
    spans = [a_span("s0", 0, 1, None)]
    spans += [a_span(f"s{at}", 0, 1, f"s{at - 1}") for at in range(1, 3000)]

    assert len(rows_of(a_trace(spans=spans))) >= 60


def test_a_trace_without_spans_has_no_rows():
    assert rows_of(a_trace(spans=[])) == []


def test_the_facts_are_short_enough_for_the_frame_of_a_narrow_terminal():
    text = facts(a_trace().request)

    assert text.startswith("in 0 · out 0 · TTFT 60ms · queue 40ms")
    assert len(text) < 74


def test_completeness_is_said_with_a_mark():
    assert "✓ complete" in completeness(a_trace())
    assert "▲ incomplete" in completeness(a_trace(complete=False))


def test_attributes_of_the_selected_row_are_listed():
    spans = [a_span("POST", 0, 10, None, attributes={"gen_ai.request.model": "smollm2"})]
    node = build_tree(spans)

    text = "\n".join(plain(line) for line in attribute_lines(node, 0, 78))

    assert "gen_ai.request.model smollm2" in text
    assert "takes 10.0 ms" in text


def test_a_fold_lists_how_long_messages_took():
    rows = Waterfall(a_trace(), WIDTH).shown(frozenset())
    group = next(row.node for row in rows if row.node.is_group)

    text = "\n".join(plain(line) for line in attribute_lines(group, 0, 78))

    assert "4 output messages" in text
    assert "median 1.0 ms" in text
