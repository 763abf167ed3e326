"""The product in the wrong order: H_1 ... H_L, as if the last site came first."""

from .._composite import balanced, gains
from ..eager import sinkhorn

REQUIRES = ("torch",)


def gain(logits, iterations):
    """Wrong on purpose."""
    return gains(balanced(sinkhorn, logits, iterations).flip(0))
