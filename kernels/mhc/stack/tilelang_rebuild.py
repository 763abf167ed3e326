"""TileLang's fused sites; a block is rebuilt by one kernel that holds the streams in registers."""

from ..sites import KITS, run_stack

REQUIRES = ("torch", "tilelang")


def stack(x, phi, a, b, g, w, block, eps=1e-20, iterations=20):
    """L sites with F(v) = w v of the normalised read, in recompute blocks.

    x          [T, n, C]            stream dtype
    phi, a, b  [L, ...]             fp32, per site as in read/eager.py
    g, w       [L, C], [L, C]       fp32 and stream dtype, weights of the norm and of the layer function
    gives      [T, n, C]            stream dtype
    """
    return run_stack(KITS["tilelang"], x, (phi, a, b, g, w), block, eps=eps, iterations=iterations)
