"""Medians and their intervals."""

import random

import pytest

from perflab.analyse.stats import median, median_interval, relative_half_width


def test_medians_of_odd_and_even_counts():
    assert median([3, 1, 2]) == 2
    assert median([4, 1, 3, 2]) == 2.5
    with pytest.raises(ValueError, match="no samples"):
        median([])


def test_ranks_are_those_of_the_binomial_tables():
    """Classical table of the sign test's 95% ranks, counted from one: n=6: 1..6, n=10: 2..9, n=20: 6..15, n=100: 40..61."""
    for count, low, high in [(6, 1, 6), (10, 2, 9), (20, 6, 15), (100, 40, 61)]:
        assert median_interval(range(1, count + 1)) == (low, high)


def test_the_interval_covers_the_median_as_often_as_it_says():
    rng = random.Random(0)
    hits = 0
    for _ in range(2000):
        low, high = median_interval([rng.expovariate(1) for _ in range(25)])
        hits += low <= 0.6931 <= high
    assert 0.945 <= hits / 2000 <= 0.975


@pytest.mark.parametrize("count", [1, 2, 5, 999, 1000, 5000])
def test_any_count_gives_an_ordered_interval_around_the_median(count):
    samples = list(range(count))
    low, high = median_interval(samples)
    assert low <= median(samples) <= high


def test_half_width_is_relative():
    assert relative_half_width([10.0] * 8) == 0
    assert relative_half_width([1, 2, 3, 4, 5, 6]) == pytest.approx(2.5 / 3.5)


def test_the_normal_law_takes_over_where_the_binomial_leaves_off():
    """The same rank, or one off, on both sides of the switch."""
    low, high = median_interval(range(1000))
    further = median_interval(range(1002))
    assert abs(further[0] - low) <= 2
    assert abs(further[1] - high) <= 2
