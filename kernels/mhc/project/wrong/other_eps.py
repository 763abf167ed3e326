"""eps is 1e-6, as in other implementations: tokens of small values get another norm."""

from ..eager import project as right

REQUIRES = ("torch",)


def project(x, phi, eps):
    """Wrong on purpose."""
    return right(x, phi, 1e-6)
