"""torch.compile of the normalisations and the product together."""

import torch

from ..sinkhorn.eager import sinkhorn
from ._composite import balanced, gains

REQUIRES = ("torch",)


@torch.compile(dynamic=False)
def gain(logits, iterations):
    """Forward gain, backward gain and column error of every token's composite; see _composite.py for shapes."""
    return gains(balanced(sinkhorn, logits, iterations))
