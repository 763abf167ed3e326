"""Forty normalisations over the matrices of all sites, then their product, site by site."""

from ..sinkhorn.eager import sinkhorn
from ._composite import balanced, gains

REQUIRES = ("torch",)


def gain(logits, iterations):
    """Forward gain, backward gain and column error of every token's composite; see _composite.py for shapes."""
    return gains(balanced(sinkhorn, logits, iterations))
