"""Triton's Sinkhorn with sums that cross lanes, over all sites at once; torch multiplies."""

from ..sinkhorn.triton_lanes import sinkhorn
from ._composite import balanced, gains

REQUIRES = ("torch", "triton")


def gain(logits, iterations):
    """Forward gain, backward gain and column error of every token's composite; see _composite.py for shapes."""
    return gains(balanced(sinkhorn, logits, iterations))
