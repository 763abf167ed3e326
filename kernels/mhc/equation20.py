"""Equation 20 of arXiv 2512.24880: what recompute blocks keep, and the block that keeps the least."""

import math


def kept(L: int, block: int, n: int, in_flight: int = 1) -> int:
    """Elements a token, over C, of L sites in blocks: every block's first streams, and what one block is rebuilt to.

    in_flight  micro-batches whose first streams wait at once, as they do on a pipeline's stage
    """
    return n * in_flight * math.ceil(L / block) + (n + 2) * block


def best_block(L: int, n: int, in_flight: int = 1) -> int:
    """The block that keeps the least; the smallest of several."""
    return min(range(1, L + 1), key=lambda block: kept(L, block, n, in_flight))
