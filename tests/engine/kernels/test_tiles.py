"""Row counts are covered by tiles, and disagreeing tiles are found."""

from itertools import combinations

import pytest
import torch

from engine.kernels.reference.tiles import BASE_TILE, CANDIDATES, TilePlan, agreeing_tiles


@pytest.mark.parametrize("tiles", [CANDIDATES, (16,), (16, 64)])
def test_every_row_count_is_covered_with_little_waste(tiles):
    plan = TilePlan(tiles)

    for rows in range(1, 700):
        split = plan.split(rows)
        assert set(split) <= set(tiles)
        assert rows <= sum(split) == plan.padded(rows) < rows + BASE_TILE
        assert split == sorted(split, reverse=True)


def test_padded_rows_are_split_without_a_rest_whatever_tiles_agree():
    others = [tile for tile in CANDIDATES if tile != BASE_TILE]
    for count in range(len(CANDIDATES)):
        for agreed in combinations(others, count):
            plan = TilePlan([BASE_TILE, *agreed])
            for rows in range(1, 700):
                assert sum(plan.split(plan.padded(rows))) == plan.padded(rows)


def test_a_short_rest_is_rounded_up_instead_of_calling_once_more():
    assert TilePlan(CANDIDATES).split(250) == [256]


def test_a_tile_that_gives_other_bits_is_dropped():
    def run(rows: torch.Tensor) -> torch.Tensor:
        return rows + (1e-6 if rows.shape[-2] in (4, 64) else 0.0)

    assert agreeing_tiles(torch.rand(256, 8), run) == {8, 16, 32, 128, 256}


def test_tiles_beyond_the_input_are_not_tried():
    assert agreeing_tiles(torch.rand(64, 8), lambda rows: rows * 2) == {4, 8, 16, 32, 64}
