"""The choice of programs that stand for a launch."""

import math

import pytest

from perflab.measure.traffic.grid import classes


@pytest.mark.parametrize("grid", [(1,), (2,), (3,), (64,), (0,), (5, 1, 3), (4, 4, 4)])
def test_a_small_grid_runs_in_full(grid):
    groups = classes(grid, 64, seed=0)
    assert all(group.complete for group in groups)
    chosen = [program for group in groups for program in group.chosen]
    assert len(chosen) == len(set(chosen)) == math.prod(grid)


@pytest.mark.parametrize("grid", [(65,), (16384,), (4096, 7), (100, 2, 1), (50, 60, 70)])
@pytest.mark.parametrize("seed", [0, 1])
def test_a_large_grid_is_sampled_within_the_budget(grid, seed):
    groups = classes(grid, 64, seed)
    assert sum(group.size for group in groups) == math.prod(grid)
    chosen = [program for group in groups for program in group.chosen]
    assert len(chosen) == len(set(chosen)) <= 64
    assert all(0 <= place < n for program in chosen for place, n in zip(program, grid, strict=True))
    assert {(0,) * len(grid), tuple(n - 1 for n in grid)} <= set(chosen)
    assert all(group.complete or len(group.chosen) >= 2 for group in groups)
    assert groups == classes(grid, 64, seed)


@pytest.mark.parametrize("n", [240, 1000, 4096, 10 * 1023])
def test_a_row_end_of_any_fold_is_among_the_chosen(n):
    """A kernel that folds rows of `width` programs into one axis masks the last program of a row."""
    chosen = {program[0] for group in classes((n,), 64, seed=0) for program in group.chosen} - {0, n - 1}
    for width in (d for d in range(2, n) if n % d == 0):
        assert any(place % width == width - 1 for place in chosen), width
        assert any(place % width != width - 1 for place in chosen), width
