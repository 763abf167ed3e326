"""Sets of addresses that strided walks touch, and how many bytes such sets hold together.

A walk that meets an address twice (an expanded dimension, overlapping windows) counts it once, and the order of the
dimensions does not matter: a transposed tensor has the footprint of the tensor.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

#: Runs that may be listed one by one (16 bytes each, a few copies). Beyond it an upper bound is given instead.
MAX_RUNS = 1 << 22

Runs = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]


@dataclass(frozen=True)
class Footprint:
    """Runs of `run` bytes, the first at `start`, repeated along every (stride, size) of `outer`.

    `outer` goes from the smallest stride to the largest. All in bytes.
    """

    start: int
    run: int
    outer: tuple[tuple[int, int], ...] = ()

    @property
    def stop(self) -> int:
        """One past the last byte."""
        return self.start + self.run + sum(stride * (size - 1) for stride, size in self.outer)

    @property
    def count(self) -> int:
        """Number of runs, met twice or not."""
        return math.prod(size for _, size in self.outer)

    @property
    def disjoint(self) -> bool:
        """Whether no two runs can share a byte: every stride clears all that lies inside it."""
        span = self.run
        for stride, size in self.outer:
            if stride < span:
                return False
            span += stride * (size - 1)
        return True

    def runs(self) -> Runs:
        """Start and end of every run, in bytes, unsorted."""
        starts = np.array([self.start], dtype=np.int64)
        for stride, size in self.outer:
            starts = np.add.outer(starts, stride * np.arange(size, dtype=np.int64)).ravel()
        return starts, starts + self.run


def strided(sizes: Sequence[int], strides: Sequence[int], offset: int = 0, item_bytes: int = 1) -> Footprint:
    """Footprint of a strided walk; strides (of either sign) and offset in elements."""
    start = offset * item_bytes
    if 0 in sizes:
        return Footprint(start, 0)
    dims: list[tuple[int, int]] = []
    for size, stride in zip(sizes, strides, strict=True):
        if stride < 0:
            start += stride * (size - 1) * item_bytes
        if size > 1 and stride != 0:
            dims.append((abs(stride) * item_bytes, size))
    run = item_bytes
    outer: list[tuple[int, int]] = []
    for stride, size in sorted(dims):
        if not outer and stride <= run:
            run += stride * (size - 1)
        elif outer and stride == outer[-1][0] * outer[-1][1]:
            outer[-1] = (outer[-1][0], outer[-1][1] * size)
        else:
            outer.append((stride, size))
    return Footprint(start, run, tuple(outer))


def union_bytes(footprints: Iterable[Footprint], limit: int | None = None) -> int:
    """Bytes in the union, of which only those in [0, limit) count when a limit is given.

    Exact as long as overlapping footprints hold fewer than MAX_RUNS runs; else the smaller of two upper bounds: the
    sum of the parts and the extent of the whole.
    """
    parts = sorted({f for f in footprints if f.run > 0}, key=lambda f: (f.start, -f.stop))
    total = 0
    group: list[Footprint] = []
    for part in parts:
        if group and part.start >= max(f.stop for f in group):
            total += _overlapping_bytes(group, limit)
            group = []
        group.append(part)
    return total + (_overlapping_bytes(group, limit) if group else 0)


def _overlapping_bytes(group: list[Footprint], limit: int | None) -> int:
    """Bytes in the union of footprints whose extents overlap."""
    solid = [f for f in group if not f.outer]
    group = [f for f in group if not any(f is not s and s.start <= f.start and f.stop <= s.stop for s in solid)]
    low, high = min(f.start for f in group), max(f.stop for f in group)
    inside = limit is None or (low >= 0 and high <= limit)
    if inside and len(group) == 1 and group[0].disjoint:
        return group[0].run * group[0].count
    if sum(f.count for f in group) > MAX_RUNS:
        extent = high - low if limit is None else max(0, min(high, limit) - max(low, 0))
        return min(extent, sum(f.run * f.count for f in group))
    starts, ends = (np.concatenate(side) for side in zip(*(f.runs() for f in group), strict=True))
    if limit is not None:
        starts, ends = np.clip(starts, 0, limit), np.clip(ends, 0, limit)
    order = np.argsort(starts, kind="stable")
    starts, ends = starts[order], np.maximum.accumulate(ends[order])
    covered = np.concatenate(([starts[0]], ends[:-1]))
    return int(np.maximum(0, ends - np.maximum(starts, covered)).sum())
