"""Compiled reads and writes; a block keeps its first streams and rebuilds the rest site by site."""

from ..sites import KITS, run_stack

REQUIRES = ("torch",)


def stack(x, phi, a, b, g, w, block, eps=1e-20, iterations=20):
    """L sites with F(v) = w v of the normalised read, in recompute blocks.

    x          [T, n, C]            stream dtype
    phi, a, b  [L, ...]             fp32, per site as in read/eager.py
    g, w       [L, C], [L, C]       fp32 and stream dtype, weights of the norm and of the layer function
    gives      [T, n, C]            stream dtype
    """
    return run_stack(KITS["compiled"], x, (phi, a, b, g, w), block, eps=eps, iterations=iterations)
