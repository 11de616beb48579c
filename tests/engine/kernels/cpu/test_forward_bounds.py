"""Values out of bounds are refused before anything is read or written."""

import ctypes
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from engine.kernels.cpu.library import BAD_VALUE, OK, Pool, instruction_sets, library
from engine.kernels.cpu.structs import Model
from tests.engine.kernels.cpu.tiny_engine import (
    Change,
    Rows,
    Shape,
    TinyEngine,
    TinyModel,
    TinyStep,
    make_model,
)

SHAPE = Shape()
MAX_TOKENS, MAX_REQUESTS = 40, 3
ISA = "portable"


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with Pool(2) as found:
        yield found


@pytest.fixture(scope="module")
def model() -> TinyModel:
    return make_model(SHAPE)


@pytest.fixture(scope="module")
def engine(model: TinyModel, pool: Pool) -> Iterator[TinyEngine]:
    found = TinyEngine(model, pool, ISA, MAX_TOKENS, MAX_REQUESTS)
    yield found
    found.close()


def sound_step(model: TinyModel) -> TinyStep:
    """Return a step of two requests, the second behind its window, with an adapter."""
    down = np.zeros((2, SHAPE.hidden), np.float32)
    change = Change(0, 0, 0, down, np.zeros((2, 8), np.float32))
    rows = [Rows([1, 2, 3], [0, 1], 0), Rows([4, 5], [2, 3, 4], 38, 0)]
    return TinyStep(model, rows, [[change]])


def assign(target: str, value: Any) -> Callable[[TinyStep], None]:
    """Return what sets one value of a step; `target` is a path such as `requests[0].num_rows`."""

    def change(step: TinyStep) -> None:
        *path, last = target.replace("[", ".").replace("]", "").split(".")
        at: Any = step
        for name in path:
            at = at[int(name)] if name.isdigit() else getattr(at, name)
        if last.isdigit():
            at[int(last)] = value
        else:
            setattr(at, last, value)

    return change


@pytest.mark.parametrize("isa", instruction_sets())
def test_a_sound_step_is_computed(model, pool, isa):
    engine = TinyEngine(model, pool, isa, MAX_TOKENS, MAX_REQUESTS)
    try:
        assert engine.run(sound_step(model)) == OK
    finally:
        engine.close()


BAD_STEPS = {
    "token beyond the vocabulary": ("tokens[2]", SHAPE.vocab),
    "negative token": ("tokens[0]", -1),
    "no tokens": ("structure.num_tokens", 0),
    "more tokens than the engine takes": ("structure.num_tokens", MAX_TOKENS + 1),
    "fewer tokens than rows": ("structure.num_tokens", 4),
    "more tokens than rows": ("structure.num_requests", 1),
    "no token ids": ("structure.token_ids", None),
    "no requests": ("structure.num_requests", 0),
    "more requests than the engine takes": ("structure.num_requests", MAX_REQUESTS + 1),
    "requests nowhere": ("structure.requests", None),
    "rows that do not begin at 0": ("requests[0].first_row", 1),
    "rows with a gap": ("requests[1].first_row", 4),
    "rows that overlap": ("requests[1].first_row", 2),
    "request without rows": ("requests[0].num_rows", 0),
    "request with negative rows": ("requests[0].num_rows", -3),
    "request with too many rows": ("requests[1].num_rows", 1 << 30),
    "negative position": ("requests[0].start_position", -1),
    "position beyond the blocks": ("requests[1].start_position", 47),
    "position beyond all numbers": ("requests[1].start_position", 2**31 - 1),
    "fewer blocks than positions": ("requests[1].num_blocks", 2),
    "negative number of blocks": ("requests[1].num_blocks", -1),
    "blocks nowhere": ("requests[0].blocks", None),
    "window blocks nowhere": ("requests[0].window_blocks", None),
    "window blocks nowhere, behind the first": ("requests[1].window_blocks", None),
    "block beyond the cache": ("blocks[0][0]", SHAPE.num_blocks),
    "negative block": ("blocks[1][1]", -1),
    "sampled row beyond the step": ("sampled[4]", 5),
    "negative sampled row": ("sampled[0]", -1),
    "more sampled rows than the engine takes": ("structure.num_sampled", MAX_TOKENS + 1),
    "negative number of sampled rows": ("structure.num_sampled", -1),
    "sampled rows nowhere": ("structure.sampled_rows", None),
    "logits nowhere": ("structure.logits", None),
    "negative number of adapters": ("structure.num_adapters", -1),
    "adapters nowhere": ("structure.adapters", None),
    "negative number of adapter rows": ("adapters[0].num_rows", -1),
    "more adapter rows than the step has": ("adapters[0].num_rows", 1 << 40),
    "adapter rows nowhere": ("adapters[0].rows", None),
    "adapter without lists": ("adapters[0].lists", None),
    "adapter row beyond the step": ("rows_of_adapters[0][0]", 5),
    "row twice in an adapter": ("rows_of_adapters[0][0]", 4),
    "negative number of updates": ("lists[0][0].count", -1),
    "updates nowhere": ("lists[0][3].count", 1),
    "rank of nothing": ("updates[0][0].rank", 0),
    "rank too high": ("updates[0][0].rank", 1025),
    "update of other inputs": ("updates[0][0].width", SHAPE.hidden + 1),
    "update before the first column": ("updates[0][0].first_column", -1),
    "update beyond the last column": ("updates[0][0].first_column", SHAPE.qkv_columns - 7),
    "update of no columns": ("updates[0][0].columns", 0),
    "update of too many columns": ("updates[0][0].columns", 2**31 - 1),
    "update without a first matrix": ("updates[0][0].down", None),
    "update without a second matrix": ("updates[0][0].up", None),
}


@pytest.mark.parametrize("what", BAD_STEPS)
def test_a_bad_step_is_refused_and_nothing_computed(model, engine, what):
    step = sound_step(model)
    assign(*BAD_STEPS[what])(step)

    assert engine.run(step) == BAD_VALUE

    assert np.isnan(step.logits).all()


def test_sound_steps_that_are_larger_than_the_engine_are_refused(model, engine):
    fits = TinyStep(model, [Rows([1] * MAX_TOKENS, [0, 1, 2])])
    too_long = TinyStep(model, [Rows([1] * (MAX_TOKENS + 1), [0, 1, 2])])
    too_long.structure.num_sampled = 1
    too_many = TinyStep(model, [Rows([1], [at]) for at in range(MAX_REQUESTS + 1)])
    too_much_wanted = TinyStep(model, [Rows([1], [0])])
    sampled = np.zeros(MAX_TOKENS + 1, np.int32)
    logits = np.full((sampled.size, SHAPE.vocab), np.nan, np.float32)
    too_much_wanted.structure.num_sampled = sampled.size
    too_much_wanted.structure.sampled_rows = sampled.ctypes.data
    too_much_wanted.structure.logits = logits.ctypes.data

    assert engine.run(fits) == OK
    for step in (too_long, too_many, too_much_wanted):
        assert engine.run(step) == BAD_VALUE


def test_a_last_request_without_rows_is_refused(model, engine):
    step = sound_step(model)
    step.requests[0].num_rows = 5
    step.requests[1].first_row, step.requests[1].num_rows = 5, 0

    assert engine.run(step) == BAD_VALUE


def test_a_row_of_two_adapters_is_refused(model, engine):
    down = np.zeros((2, SHAPE.hidden), np.float32)
    change = Change(0, 0, 0, down, np.zeros((2, 8), np.float32))
    step = TinyStep(model, [Rows([1], [0], 0, 0), Rows([2], [1], 0, 1)], [[change], [change]])
    assert engine.run(step) == OK
    step.rows_of_adapters[1][0] = 0

    assert engine.run(step) == BAD_VALUE


def test_window_blocks_before_the_window_may_be_anything(model, engine):
    rows = [Rows([4, 5], [2, 3, 4], 38)]
    step = TinyStep(model, rows)
    wanted = TinyStep(model, rows)
    window_blocks = np.array([-1, 3, 4], np.int32)
    step.requests[0].window_blocks = window_blocks.ctypes.data

    assert engine.run(wanted) == OK
    assert engine.run(step) == OK

    np.testing.assert_array_equal(step.logits, wanted.logits)


def test_window_blocks_are_counted_by_themselves(model, pool):
    structure = model.structure()
    structure.num_window_blocks = 4
    handle = create(structure, pool.handle, max_tokens=MAX_TOKENS)
    step = TinyStep(model, [Rows([4, 5], [2, 3, 4], 38)])
    try:
        assert library().qd_forward(handle, step.structure) == BAD_VALUE

        window_blocks = np.array([-1, 3, 2], np.int32)
        step.requests[0].window_blocks = window_blocks.ctypes.data
        assert library().qd_forward(handle, step.structure) == OK
    finally:
        library().qd_engine_destroy(handle)


def test_no_sampled_rows_are_no_error(model, engine):
    step = sound_step(model)
    step.structure.num_sampled, step.structure.logits = 0, None

    assert engine.run(step) == OK


BAD_MODELS: dict[str, Callable[[Model], None]] = {
    "layers nowhere": lambda m: setattr(m, "layers", None),
    "blocks of no positions": lambda m: setattr(m, "block_size", 0),
    "blocks of too many positions": lambda m: setattr(m, "block_size", 1 << 30),
    "no blocks": lambda m: setattr(m, "num_blocks", 0),
    "no key-value heads": lambda m: setattr(m, "num_kv_heads", 0),
    "epsilon that is no number": lambda m: setattr(m.final_norm, "epsilon", float("nan")),
    "epsilon of a norm that may be missing": lambda m: _set_query_norm(m, -1.0),
    "no layers": lambda m: setattr(m, "num_layers", 0),
    "hidden size of nothing": lambda m: setattr(m, "hidden_size", 0),
    "hidden size beyond the weights": lambda m: setattr(m, "hidden_size", SHAPE.hidden + 2),
    "heads that are no multiple": lambda m: setattr(m, "num_kv_heads", 3),
    "heads of nothing": lambda m: setattr(m, "head_dim", 0),
    "heads too large": lambda m: setattr(m, "head_dim", 1024),
    "odd rotary size": lambda m: setattr(m, "rotary_dim", 15),
    "rotary size beyond the head": lambda m: setattr(m, "rotary_dim", SHAPE.head_dim + 2),
    "no frequencies": lambda m: setattr(m, "frequencies", None),
    "no frequencies of window layers": lambda m: setattr(m, "window_frequencies", None),
    "window layers without a window": lambda m: setattr(m, "window", 0),
    "window layers without blocks": lambda m: setattr(m, "num_window_blocks", 0),
    "vocabulary beyond the head": lambda m: setattr(m, "vocab_size", SHAPE.vocab + 1),
    "unknown activation": lambda m: setattr(m, "activation", 2),
    "unknown cache": lambda m: setattr(m, "cache_dtype", 2),
    "scale that is no number": lambda m: setattr(m, "attention_scale", float("nan")),
    "negative cap": lambda m: setattr(m, "logits_softcap", -1.0),
    "no final norm": lambda m: setattr(m.final_norm, "weight", None),
    "no norm of a layer": lambda m: setattr(m.layers[1].mlp_norm, "weight", None),
    "no cache": lambda m: setattr(m.layers[0], "cache", None),
    "cache off its alignment": lambda m: setattr(m.layers[0], "cache", m.layers[0].cache + 4),
    "weights off their alignment": lambda m: setattr(_first(m), "panels", _first(m).panels + 16),
    "weights nowhere": lambda m: setattr(_first(m), "panels", None),
    "segment of other inputs": lambda m: setattr(_first(m), "width", 98),
    "fewer inputs than the hidden size": lambda m: _set_width(m, 64),
    "inputs that are no whole groups": lambda m: _set_width(m, 97),
    "segment without rows": lambda m: _empty_first_segment(m),
    "weights of other inputs": lambda m: setattr(m.layers[0].qkv, "width", 64),
    "format of other inputs": lambda m: setattr(_first(m), "format", 1),
    "unknown format": lambda m: setattr(_first(m), "format", 9),
    "segments with a gap": lambda m: setattr(_first(m), "first_column", 2),
    "no segments": lambda m: setattr(m.layers[0].down, "num_segments", 0),
    "columns that nothing fills": lambda m: setattr(_first(m), "rows", SHAPE.qkv_columns - 32),
}


def _first(model: Model) -> Any:
    return model.layers[0].qkv.segments[0]


def _set_width(model: Model, width: int) -> None:
    model.layers[0].qkv.width = _first(model).width = width


def _set_query_norm(model: Model, epsilon: float) -> None:
    norm = model.layers[0].query_norm
    norm.weight, norm.epsilon = model.final_norm.weight, epsilon


def _empty_first_segment(model: Model) -> None:
    first, second = model.embedding.segments[:2]
    first.rows, second.first_column, second.rows = 0, 0, SHAPE.vocab


@pytest.mark.parametrize("what", BAD_MODELS)
def test_a_model_that_makes_no_sense_is_refused(pool, what):
    tiny = make_model(SHAPE)
    structure = tiny.structure()
    BAD_MODELS[what](structure)

    assert create(structure, pool.handle) is None


def test_heads_larger_than_the_kernels_hold_are_refused(pool):
    largest, larger = (
        make_model(Shape(num_heads=1, num_kv_heads=1, head_dim=size)) for size in (512, 514)
    )

    engine = create(largest.structure(), pool.handle)
    assert engine is not None
    library().qd_engine_destroy(engine)
    assert create(larger.structure(), pool.handle) is None


@pytest.mark.parametrize(
    ("isa", "max_tokens", "max_requests"),
    [("z80", 8, 8), (ISA, 0, 8), (ISA, 8, 0), (ISA, 2**31 - 1, 8)],
)
def test_engines_that_make_no_sense_are_refused(model, pool, isa, max_tokens, max_requests):
    structure = model.structure()

    assert create(structure, pool.handle, isa, max_tokens, max_requests) is None
    assert create(structure, None) is None


def create(
    structure: Model,
    pool: int | None,
    isa: str = ISA,
    max_tokens: int = 8,
    max_requests: int = 8,
) -> int | None:
    return library().qd_engine_create(
        ctypes.byref(structure), pool, isa.encode(), max_tokens, max_requests
    )


def test_no_engine_and_no_step_are_refused(model, engine):
    step = sound_step(model)

    assert library().qd_forward(None, ctypes.byref(step.structure)) == BAD_VALUE
    assert library().qd_forward(engine.handle, None) == BAD_VALUE
    library().qd_engine_destroy(None)
