"""One iteration of Sinkhorn less than asked for."""

from .._composite import balanced, gains
from ..eager import sinkhorn

REQUIRES = ("torch",)


def gain(logits, iterations):
    """Wrong on purpose."""
    return gains(balanced(sinkhorn, logits, iterations - 1))
