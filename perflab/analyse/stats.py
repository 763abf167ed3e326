"""Statistics of samples: medians and their order-statistic intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from statistics import NormalDist

#: More samples than this take the normal law instead of the binomial, whose numbers grow long.
EXACT_UP_TO = 1000


def median(samples: Sequence[float]) -> float:
    """The middle value, or the mean of the two middle ones. Fails: ValueError without samples."""
    if not samples:
        raise ValueError("no samples, no median")
    ordered = sorted(samples)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def median_interval(samples: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """Distribution-free confidence interval of the median, from the binomial law of ranks.

    With fewer than six samples no such interval reaches 95%; the extremes are given then.
    """
    ordered, count = sorted(samples), len(samples)
    if not ordered:
        raise ValueError("no samples, no interval")
    if count > EXACT_UP_TO:
        half = NormalDist().inv_cdf((1 + confidence) / 2) * math.sqrt(count) / 2
        rank = math.floor(count / 2 - half)
        return ordered[rank], ordered[count - 1 - rank]
    # The median lies below the value of rank r with probability P(B <= r), B binomial(count, 1/2): exact in integers.
    limit = math.floor(Fraction((1 - confidence) / 2) * 2**count)
    rank, below = 0, 1 + count
    while below <= limit and rank < (count - 1) // 2:
        rank += 1
        below += math.comb(count, rank + 1)
    return ordered[rank], ordered[count - 1 - rank]


def relative_half_width(samples: Sequence[float]) -> float:
    """Half the median's 95% interval over the median."""
    low, high = median_interval(samples)
    return (high - low) / 2 / median(samples)
