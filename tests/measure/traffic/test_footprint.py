"""Footprints against the sets of addresses written out one by one."""

import itertools

import numpy as np
import pytest

from perflab.measure.traffic import footprint as fp
from perflab.measure.traffic.footprint import strided, union_bytes


def _listed(sizes, strides, offset, item):
    places = set()
    for index in itertools.product(*(range(size) for size in sizes)):
        first = (offset + sum(i * s for i, s in zip(index, strides, strict=True))) * item
        places |= set(range(first, first + item))
    return places


CASES = [
    ((4, 3), (3, 1), 0, 4),  # contiguous
    ((3, 4), (1, 3), 0, 4),  # transposed
    ((5, 3, 4), (0, 4, 1), 0, 2),  # expanded
    ((4, 2), (8, 1), 3, 2),  # a slice of columns
    ((4, 2), (8, 2), 0, 1),  # every other column
    ((6, 3), (1, 1), 0, 4),  # overlapping windows
    ((4, 3, 2), (5, 3, 1), 0, 1),  # overlapping, with gaps
    ((3, 5), (5, -1), 4, 4),  # flipped
    ((), (), 7, 8),  # a scalar
    ((0, 3), (3, 1), 0, 4),  # empty
    ((2, 5, 3), (40, 8, 1), 1, 2),  # dimensions that collapse
]


@pytest.mark.parametrize(("sizes", "strides", "offset", "item"), CASES)
def test_footprint_holds_each_address_once(sizes, strides, offset, item):
    assert union_bytes([strided(sizes, strides, offset, item)]) == len(_listed(sizes, strides, offset, item))


@pytest.mark.parametrize("limit", [None, 20])
def test_union_of_random_walks(limit):
    rng = np.random.default_rng(0)
    for _ in range(200):
        walks = []
        for _ in range(rng.integers(1, 4)):
            dims = int(rng.integers(0, 4))
            sizes = rng.integers(1, 5, dims).tolist()
            strides = rng.integers(-6, 7, dims).tolist()
            walks.append((sizes, strides, int(rng.integers(-5, 20)), int(rng.choice([1, 2, 4]))))
        places = set().union(*(_listed(*walk) for walk in walks))
        if limit is not None:
            places = {p for p in places if 0 <= p < limit}
        assert union_bytes([strided(*walk) for walk in walks], limit) == len(places)


def test_a_union_with_too_many_runs_is_bounded_from_above(monkeypatch):
    monkeypatch.setattr(fp, "MAX_RUNS", 4)
    even, odd = strided((8,), (2,)), strided((8,), (2,), 1)
    assert union_bytes([even]) == 8
    assert union_bytes([even, odd]) == 16  # exact: both bounds are tight
    assert union_bytes([even, strided((4,), (4,))]) == 12  # 8 in truth
