"""Overhead over a baseline, from blocks of samples taken in turn: in each round, one block of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from perflab.analyse.stats import median, median_interval
from perflab.record import Latency

#: With fewer rounds no interval of 95% can be told.
MIN_ROUNDS = 6


@dataclass(frozen=True)
class Overhead:
    """How much longer than the baseline, as a share of its time: the median over rounds, and its 95% interval."""

    share: float
    low: float
    high: float

    @property
    def width(self) -> float:
        """Of the interval."""
        return self.high - self.low


def overhead(case: Latency, baseline: Latency) -> Overhead | None:
    """From the two's blocks, paired by round, so that what slows a whole round slows both; None for too few rounds."""
    return of_rounds(blocks(case), blocks(baseline))


def of_rounds(case: Sequence[float], baseline: Sequence[float]) -> Overhead | None:
    """From one time of each per round; None for too few, or other rounds than the baseline's, as of a resumed run."""
    if len(case) != len(baseline) or len(case) < MIN_ROUNDS:
        return None
    ratios = [one / other - 1 for one, other in zip(case, baseline, strict=True)]
    return Overhead(median(ratios), *median_interval(ratios))


def blocks(latency: Latency) -> list[float]:
    """The median of every block."""
    edges = [*latency.block_starts, len(latency.samples_s)]
    return [median(latency.samples_s[start:end]) for start, end in pairwise(edges)]
