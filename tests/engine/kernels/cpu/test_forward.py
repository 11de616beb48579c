"""A whole step of a small random model: the right logits, the same bits in any company."""

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.kernels.cpu.library import Pool, instruction_sets
from engine.kernels.cpu.weights import Format
from tests.engine.kernels.cpu.packed import Floats
from tests.engine.kernels.cpu.tiny_engine import (
    Change,
    Rows,
    Shape,
    TinyEngine,
    TinyModel,
    TinyStep,
    make_model,
)
from tests.engine.kernels.cpu.tiny_oracle import logits_of

every_isa = pytest.mark.parametrize("isa", instruction_sets())
every_format = pytest.mark.parametrize("format_", list(Format), ids=lambda f: f.name)
PLAIN = Shape()
RICH = Shape(
    has_sandwich_norms=True,
    has_head_norms=True,
    activation=1,
    logits_softcap=5.0,
    windows=(True, False, True),
)


@pytest.fixture(scope="module", params=[1, 2])
def pool(request: pytest.FixtureRequest) -> Iterator[Pool]:
    with Pool(request.param) as found:
        yield found


def tokens_of(seed: int, count: int, vocab: int = PLAIN.vocab) -> list[int]:
    return np.random.default_rng(seed).integers(0, vocab, count).tolist()


def forward(
    model: TinyModel,
    pool: Pool,
    isa: str,
    steps: Sequence[Sequence[Rows]],
    changes: Sequence[Sequence[Change]] = (),
) -> list[Floats]:
    """Compute steps one after the other with one engine."""
    engine = TinyEngine(model, pool, isa)
    try:
        return [engine.forward(rows, changes) for rows in steps]
    finally:
        engine.close()


def adapter(seed: int, shape: Shape, rank: int = 3) -> list[Change]:
    """Return updates of all four products of the first layer, and of one of the second."""
    random = np.random.default_rng(seed)

    def change(layer: int, part: int, width: int, first: int, columns: int) -> Change:
        down = random.standard_normal((rank, width), dtype=np.float32) / np.float32(width**0.5)
        up = random.standard_normal((rank, columns), dtype=np.float32) / np.float32(3.0)
        return Change(layer, part, first, down, up)

    heads, hidden = shape.num_heads * shape.head_dim, shape.hidden
    return [
        change(0, 0, hidden, heads, shape.num_kv_heads * shape.head_dim),
        change(0, 1, heads, 0, hidden),
        change(0, 2, hidden, shape.gate_columns, shape.inner),
        change(0, 3, shape.inner, 0, hidden),
        change(1, 2, hidden, 0, shape.inner),
    ]


def error_of(found: Floats, wanted: np.ndarray) -> float:
    """Return the root mean square of the difference, as a share of the logits'."""
    return float(np.sqrt(np.mean((found - wanted) ** 2)) / wanted.std())


@every_isa
@every_format
@pytest.mark.parametrize("shape", [PLAIN, RICH], ids=["plain", "rich"])
def test_logits_are_those_of_the_plain_formulas(isa, format_, shape, pool):
    shape = Shape(**{**{n: getattr(shape, n) for n in shape.__slots__}, "format": format_})
    model, tokens = make_model(shape), tokens_of(3, 37)

    (found,) = forward(model, pool, isa, [[Rows(tokens, [5, 2, 9])]])

    assert error_of(found, logits_of(model, tokens)) < (0.01 if format_ is Format.BF16 else 0.03)


@st.composite
def shapes(draw: st.DrawFn) -> Shape:
    """Models wide enough that norms, of two values for one, do not make much of rounding."""
    head_dim = draw(st.integers(2, 80))
    num_kv_heads = draw(st.integers(1, 3))
    return Shape(
        format=draw(st.sampled_from(list(Format))),
        hidden=draw(st.integers(17, 130)),
        num_heads=num_kv_heads * draw(st.integers(1, 5)),
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        rotary_dim=draw(st.integers(0, head_dim // 2)) * 2,
        inner=draw(st.integers(9, 150)),
        vocab=draw(st.integers(2, 100)),
        windows=tuple(draw(st.lists(st.booleans(), min_size=1, max_size=2))),
        window=draw(st.integers(1, 40)),
        has_sandwich_norms=draw(st.booleans()),
        has_head_norms=draw(st.booleans()),
        activation=draw(st.integers(0, 1)),
        block_size=draw(st.sampled_from([1, 7, 16, 40])),
        num_blocks=60,
    )


@every_isa
@given(shape=shapes(), split=st.integers(1, 29), num_threads=st.integers(1, 3))
@settings(max_examples=25, deadline=None)
def test_any_shape_gives_the_logits_of_the_formulas(isa, shape, split, num_threads):
    model, tokens = make_model(shape), tokens_of(3, 30, shape.vocab)
    blocks = list(range(59, 59 - -(-30 // shape.block_size), -1))
    steps = [[Rows(tokens[:split], blocks)], [Rows(tokens[split:], blocks, split)]]

    with Pool(num_threads) as pool:
        found = np.concatenate(forward(model, pool, isa, steps))

    assert error_of(found, logits_of(model, tokens)) < 0.2  # small models average little out


@every_isa
@every_format
@pytest.mark.parametrize("cache_dtype", [0, 1], ids=["kv-bf16", "kv-int8"])
def test_bits_do_not_depend_on_company_chunks_or_threads(isa, format_, cache_dtype):
    shape = Shape(format=format_, cache_dtype=cache_dtype, windows=(False, True))
    tokens, blocks = tokens_of(4, 40), [3, 8, 1]
    others = [Rows(tokens_of(5, 9), [4]), Rows(tokens_of(6, 17), [5, 6])]
    with Pool(1) as one, Pool(3) as three:
        (alone,) = forward(make_model(shape), one, isa, [[Rows(tokens, blocks)]])
        (batched,) = forward(
            make_model(shape), three, isa, [[others[0], Rows(tokens, blocks), others[1]]]
        )
        chunks = forward(
            make_model(shape),
            three,
            isa,
            [
                [Rows(tokens[:7], blocks)],
                [others[0], Rows(tokens[7:8], blocks, 7)],
                [Rows(tokens[8:39], blocks, 8), others[1]],
                [Rows(tokens[39:], blocks, 39)],
            ],
        )

    np.testing.assert_array_equal(batched[9:49], alone)
    pieces = [chunks[0], chunks[1][9:], chunks[2][:31], chunks[3]]
    np.testing.assert_array_equal(np.concatenate(pieces), alone)


@every_isa
@pytest.mark.parametrize("shape", [PLAIN, RICH], ids=["plain", "rich"])
@pytest.mark.parametrize(
    "rows",
    [[28], [0, 5, 6, 20], list(range(8, 29)), [20, 0, 11], [4, 4], []],
    ids=["last", "some", "end", "unordered", "twice", "none"],
)
def test_rows_that_are_sampled_have_the_same_bits_whichever_others_are(isa, shape, rows, pool):
    first, second = Rows(tokens_of(4, 20), [3, 8]), Rows(tokens_of(5, 9), [1])
    after = [Rows(tokens_of(6, 1), [3, 8], 20), Rows(tokens_of(7, 3), [1], 9)]
    wanted, wanted_after = forward(make_model(shape), pool, isa, [[first, second], after])
    model = make_model(shape)
    engine = TinyEngine(model, pool, isa)
    step = TinyStep(model, [first, second])
    sampled = np.array(rows, np.int32)
    step.structure.sampled_rows, step.structure.num_sampled = sampled.ctypes.data, len(rows)

    assert engine.run(step) == 0
    found_after = engine.forward(after)

    engine.close()
    np.testing.assert_array_equal(step.logits[: len(rows)], wanted[rows])
    assert np.isnan(step.logits[len(rows) :]).all()
    np.testing.assert_array_equal(found_after, wanted_after)


@every_isa
@pytest.mark.parametrize("cache_dtype", [0, 1], ids=["kv-bf16", "kv-int8"])
def test_a_context_split_over_threads_gives_the_same_bits(isa, cache_dtype):
    # blocks of one position, as pieces are counted in tiles: four of them in a short context
    shape = Shape(cache_dtype=cache_dtype, window=50, block_size=1, num_blocks=120)
    tokens, blocks = tokens_of(4, 120), list(range(120))[::-1]
    steps = [
        [Rows(tokens[start:end], blocks, start)]
        for start, end in pairwise([0, 60, 90, 100, 119, 120])
    ]
    with Pool(1) as one, Pool(3) as three:
        alone = np.concatenate(forward(make_model(shape), one, isa, steps))
        split = np.concatenate(forward(make_model(shape), three, isa, steps))

    np.testing.assert_array_equal(split, alone)
    assert error_of(split, logits_of(make_model(shape), tokens)) < 0.01


@every_isa
@pytest.mark.parametrize("shape", [PLAIN, RICH], ids=["plain", "rich"])
def test_adapters_change_their_own_rows_as_the_formulas_say(isa, shape, pool):
    changes = [adapter(1, shape), adapter(2, shape)]
    first, second, third = tokens_of(1, 11), tokens_of(2, 8), tokens_of(3, 5)
    rows = [Rows(first, [0], 0, 0), Rows(second, [1]), Rows(third, [2], 0, 1)]

    (found,) = forward(make_model(shape), pool, isa, [rows], changes)

    model = make_model(shape)
    assert error_of(found[:11], logits_of(model, first, changes[0])) < 0.01
    assert error_of(found[19:], logits_of(model, third, changes[1])) < 0.01
    assert error_of(found[:11], logits_of(model, first)) > 0.1


@every_isa
@every_format
@pytest.mark.parametrize("activation", [0, 1], ids=["silu", "gelu"])
def test_rows_without_an_adapter_have_the_same_bits_beside_one(isa, format_, activation):
    shape = Shape(format=format_, activation=activation)
    plain = Rows(tokens_of(2, 8), [1])
    with Pool(2) as pool:
        (alone,) = forward(make_model(shape), pool, isa, [[plain]])
        (beside,) = forward(
            make_model(shape),
            pool,
            isa,
            [[Rows(tokens_of(1, 11), [0], 0, 0), plain]],
            [adapter(1, shape)],
        )

    np.testing.assert_array_equal(beside[11:], alone)


@every_isa
def test_rows_with_an_adapter_have_the_same_bits_in_any_company(isa):
    changes = [adapter(1, PLAIN)]
    mine = Rows(tokens_of(1, 11), [0], 0, 0)
    with Pool(2) as pool:
        (alone,) = forward(make_model(PLAIN), pool, isa, [[mine]], changes)
        company = [Rows(tokens_of(2, 8), [1]), Rows(tokens_of(3, 6), [2], 0, 0), mine]
        (beside,) = forward(make_model(PLAIN), pool, isa, [company], changes)

    np.testing.assert_array_equal(beside[14:], alone)
