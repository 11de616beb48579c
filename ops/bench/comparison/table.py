"""Writes the results of a comparison as Markdown."""

from collections.abc import Iterable, Sequence

from ceilings import Ceiling, lines_of, lines_of_shares

from comparison.bounds import BEST_PEER, BEST_SERVER, best, verdicts_of
from comparison.results import Results, Spread
from comparison.scenarios import Cell
from comparison.subjects import OURS, SUBJECTS

QUIET_CORES, QUIET_STEAL = 0.10, 0.02
NOTHING = "-"


def markdown(results: Results) -> str:
    """Return the whole report."""
    parts = [
        "# Quarterdeck against its peers",
        _introduction(results),
        *_throughput(results),
        *_ttft(results),
        *_staggered(results),
        *_prefill(results),
        *_context(results),
        *_bounds(results),
        *_ceilings(results),
        *_surroundings(results),
    ]
    return "\n\n".join(parts) + "\n"


def _introduction(results: Results) -> str:
    machine = results.machine
    return (
        f"SmolLM2-135M-Instruct on {machine['cores']} cores of {machine['cpu']}, "
        f"{machine['memory_gib']} GiB, Linux {machine['kernel']}; {machine['date']}, "
        f"{results.took_s / 60:.0f} minutes. Written by `ops/bench/compare.py`; `README.md` beside "
        "it says how it measures. Values are medians over the rounds (lowest to highest); ratios "
        "are medians of the ratios within one round, above 1 when Quarterdeck's value is higher."
    )


def _throughput(results: Results) -> Iterable[str]:
    names, sizes = results.subjects("throughput"), results.sizes("throughput")
    if not names:
        return
    cells = [Cell("throughput", size) for size in sizes]
    heads = ["1 stream" if size == 1 else f"{size} streams" for size in sizes]
    yield "## Output tokens per second"
    yield _by_subject(results, names, cells, heads, "output_tok_s")
    yield "Quarterdeck, as shipped, against each, and against the best server and the best of all:"
    yield _ratios(results, names, cells, heads, "output_tok_s")
    yield "Time to first token (ms, p50), all prompts at once:"
    yield _by_subject(results, names, cells, heads, "ttft_ms_p50")
    yield "Time between tokens (ms, p50):"
    yield _by_subject(results, names, cells, heads, "itl_ms_p50")


def _ttft(results: Results) -> Iterable[str]:
    names, cell = results.subjects("ttft"), Cell("ttft", 1)
    if names:
        yield "## Time to first token, one stream (ms, p50)"
        rows = [
            [
                _title(name),
                _cell(results.spread(cell, name, "ttft_ms_p50")),
                _times(results.ratio(cell, OURS, name, "ttft_ms_p50")),
            ]
            for name in names
        ]
        yield _table(["", "101 tokens", "Quarterdeck / it"], rows)


def _staggered(results: Results) -> Iterable[str]:
    names = results.subjects("staggered")
    if not names:
        return
    cell = Cell("staggered", results.sizes("staggered")[0])
    figures = {
        "ttft_ms_p50": "TTFT p50",
        "ttft_ms_p95": "TTFT p95",
        "itl_ms_p50": "ITL p50",
        "itl_ms_p99": "ITL p99",
        "output_tok_s": "tok/s",
    }
    yield f"## Staggered arrivals, {cell.size} streams, ramp dropped (ms)"
    rows = [
        [_title(name), *(_cell(results.spread(cell, name, figure)) for figure in figures)]
        for name in names
    ]
    yield _table(["", *figures.values()], rows)


def _prefill(results: Results) -> Iterable[str]:
    names, sizes = results.subjects("prefill"), results.sizes("prefill")
    if not names:
        return
    cells = [Cell("prefill", size) for size in sizes]
    heads = [f"{size} tokens" for size in sizes]
    yield "## Prefill, one stream (prompt tokens per second, over the server's time to first token)"
    yield _by_subject(results, names, cells, heads, "prefill_tok_s")
    yield "Quarterdeck, as shipped, against each:"
    yield _ratios(results, names, cells, heads, "prefill_tok_s")
    if results.llama_bench:
        yield "`llama-bench` without a server, for a cross-check (tok/s):"
        rows = [
            [each["model"], each["test"], f"{each['tok_s']:.0f} ± {each['stddev']:.0f}"]
            for each in results.llama_bench
        ]
        yield _table(["model", "test", "tok/s"], rows)


def _context(results: Results) -> Iterable[str]:
    names, sizes = results.subjects("context"), results.sizes("context")
    if not names:
        return
    cells = [Cell("context", size) for size in sizes]
    yield "## Decode by context, one stream (tok/s)"
    rows: list[list[str]] = []
    for name in names:
        spreads = [results.spread(cell, name, "decode_tok_s") for cell in cells]
        ends = spreads[0], spreads[-1]
        share = f"{ends[1].median / ends[0].median:.2f}" if ends[0] and ends[1] else NOTHING
        rows.append([_title(name), *map(_cell, spreads), share])
    yield _table(["", *(f"{size} tokens" for size in sizes), "last / first"], rows)


def _bounds(results: Results) -> Iterable[str]:
    verdicts = [each for each in verdicts_of(results) if each.ratio is not None]
    if verdicts:
        yield "## Bounds"
        rows = [
            [each.bound.text(), f"{each.ratio:.2f}", "holds" if each.passed else "**fails**"]
            for each in verdicts
        ]
        yield _table(["bound", "measured", ""], rows)


def _ceilings(results: Results) -> Iterable[str]:
    if not results.ceilings:
        return
    ceilings = [Ceiling(**each) for each in results.ceilings]
    yield "## What the machine can do, and the share that was reached"
    yield _code(lines_of(ceilings))
    if shares := lines_of_shares(results.as_json(), ceilings):
        yield _code(shares)


def _surroundings(results: Results) -> Iterable[str]:
    yield "## Versions and commands"
    yield _table(["", "version"], [[name, text] for name, text in results.versions.items()])
    yield _code([f"{name}: {command}" for name, command in results.commands.items()])
    if results.noise:
        yield noise_line(results)
    if results.failures:
        yield "Failed turns, which are in no figure:\n\n" + _code(results.failures)


def noise_line(results: Results) -> str:
    """Say how quiet the machine was."""
    noises = [noise for *_, noise in results.noise]
    loud = sum(
        noise.others_cores > QUIET_CORES or noise.steal_share > QUIET_STEAL for noise in noises
    )
    return (
        f"Load average at the start {results.machine['load']:.2f}, at most "
        f"{max(noise.load1 for noise in noises):.2f}; CPU steal at most "
        f"{max(noise.steal_share for noise in noises):.1%}; cores used by others at most "
        f"{max(noise.others_cores for noise in noises):.2f}. {loud} of {len(noises)} turns were "
        f"not quiet (others above {QUIET_CORES} cores, or steal above {QUIET_STEAL:.0%})."
    )


def _ratios(
    results: Results, names: Sequence[str], cells: Sequence[Cell], heads: Sequence[str], figure: str
) -> str:
    peers = [name for name in names if name != OURS]
    rows = [
        [_title(name), *(_times(results.ratio(cell, OURS, name, figure)) for cell in cells)]
        for name in peers
    ]
    for group in (BEST_SERVER, BEST_PEER):
        row = [f"**{group}**"]
        for cell in cells:
            name = best(results, cell, figure, group, most=True)
            found = results.ratio(cell, OURS, name, figure) if name else None
            row.append(f"**{_times(found)}** {name}" if found else NOTHING)
        rows.append(row)
    return _table(["Quarterdeck against", *heads], rows)


def _by_subject(
    results: Results, names: Sequence[str], cells: Sequence[Cell], heads: Sequence[str], figure: str
) -> str:
    rows = [
        [_title(name), *(_cell(results.spread(cell, name, figure)) for cell in cells)]
        for name in names
    ]
    return _table(["", *heads], rows)


def _title(name: str) -> str:
    return SUBJECTS[name].title


def _cell(spread: Spread | None) -> str:
    if spread is None:
        return NOTHING
    digits = 0 if spread.median >= 100 else 1  # noqa: PLR2004 - three figures are enough
    middle, low, high = (
        f"{value:.{digits}f}" for value in (spread.median, spread.low, spread.high)
    )
    return middle if low == high else f"{middle} ({low} to {high})"


def _times(spread: Spread | None) -> str:
    if spread is None:
        return NOTHING
    if spread.low == spread.high:
        return f"{spread.median:.2f}x"
    return f"{spread.median:.2f}x ({spread.low:.2f} to {spread.high:.2f})"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---"] + ["---:"] * (len(heads) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _code(lines: Sequence[str]) -> str:
    return "\n".join(["```", *lines, "```"])
