"""Rows are normalised first and columns last, so that the columns' error is the rows'."""

from ...sinkhorn.wrong.row_first import sinkhorn
from .._composite import balanced, gains

REQUIRES = ("torch",)


def gain(logits, iterations):
    """Wrong on purpose."""
    return gains(balanced(sinkhorn, logits, iterations))
