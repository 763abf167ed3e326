"""The compiled read and the compiled write around the layer function."""

from ..sites import KITS, Site, run_site

REQUIRES = ("torch",)


def site(x, phi, a, b, w, eps=1e-20, iterations=20):
    """One residual site with F(u) = w u.

    x, phi, a, b  as in read/eager.py
    w      [C]         stream dtype, the layer function's gain
    gives  [T, n, C]   stream dtype
    """
    return run_site(KITS["compiled"], Site(phi, a, b, lambda u: w * u, eps=eps, iterations=iterations), x)
