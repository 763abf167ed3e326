"""Which programs of a launch grid to run so that the traffic of all of them is known.

Programs that sit at the first, the last or an inner place of each axis form one class. Masks cut tails off, so the
programs of a class are expected to move the same bytes; whether they do is for the caller to check on the ones chosen.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

Program = tuple[int, ...]


@dataclass(frozen=True)
class GridClass:
    """Programs expected to behave alike: how many there are, and those chosen to stand for them."""

    size: int
    chosen: tuple[Program, ...]

    @property
    def complete(self) -> bool:
        """Whether every program of the class is chosen, so that nothing is inferred."""
        return self.size == len(self.chosen)


def classes(grid: Sequence[int], budget: int, seed: int) -> list[GridClass]:
    """Split a grid into classes and choose about `budget` programs, all of them if the grid has no more.

    At least two programs stand for a class that has two, so a budget below 54 can be exceeded on a grid of three axes.
    """
    everything = math.prod(grid) <= budget
    rng = np.random.default_rng(seed)
    parts = sorted(itertools.product(*(_parts(n) for n in grid)), key=lambda part: math.prod(map(len, part)))
    left = budget
    made: list[GridClass] = []
    for position, part in enumerate(parts):
        size = math.prod(map(len, part))
        quota = size if everything else max(2, left // (len(parts) - position))
        chosen = tuple(itertools.product(*part)) if size <= quota else _representatives(part, grid, quota, rng)
        left -= len(chosen)
        made.append(GridClass(size, chosen))
    return made


def _parts(n: int) -> list[range]:
    """First, inner and last places of an axis, as far as there are any."""
    return [part for part in (range(min(n, 1)), range(1, n - 1), range(max(1, n - 1), n)) if len(part)]


def _representatives(
    part: tuple[range, ...], grid: Sequence[int], quota: int, rng: np.random.Generator
) -> tuple[Program, ...]:
    """Both ends of a class, telling places of each axis in turn, and random ones."""
    chosen = dict.fromkeys([tuple(p[0] for p in part), tuple(p[-1] for p in part)])
    telling = [_telling_places(p, n, rng) for p, n in zip(part, grid, strict=True)]
    # A quarter is left to chance, in case the structure guessed at is not the kernel's.
    for places in itertools.zip_longest(*telling):
        for axis, place in enumerate(places):
            if place is not None and len(chosen) < max(2, quota - quota // 4):
                others = [int(rng.integers(p.start, p.stop)) for p in part]
                chosen[(*others[:axis], place, *others[axis + 1 :])] = None
    while len(chosen) < quota:
        chosen[tuple(int(rng.integers(p.start, p.stop)) for p in part)] = None
    return tuple(chosen)


def _telling_places(places: range, n: int, rng: np.random.Generator) -> list[int]:
    """Where a hidden structure of an axis of `n` programs would show, the rarest first.

    A kernel that folds several axes into one has its row ends before multiples of a divisor of n: the wider the row,
    the less likely is chance to find one. Then places just before and after those, and the same counted from the end,
    as grouped orders have them; powers of two are the usual group sizes.
    """
    small = [d for d in range(1, math.isqrt(n) + 1) if n % d == 0]
    divisors = sorted({*small, *(n // d for d in small)}, reverse=True)
    steps = {*divisors, *(1 << k for k in range(n.bit_length()))}
    around = sorted({place for d in steps for place in (d - 1, d, n - 1 - d, n - d)})
    order = dict.fromkeys([*(d - 1 for d in divisors), *rng.permutation(around).tolist()])
    return [place for place in order if place in places]
