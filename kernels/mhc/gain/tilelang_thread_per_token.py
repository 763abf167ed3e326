"""TileLang's Sinkhorn with a matrix per thread, over all sites at once; torch multiplies."""

from ..sinkhorn.tilelang_thread_per_token import sinkhorn
from ._composite import balanced, gains

REQUIRES = ("torch", "tilelang")


def gain(logits, iterations):
    """Forward gain, backward gain and column error of every token's composite; see _composite.py for shapes."""
    return gains(balanced(sinkhorn, logits, iterations))
