"""torch.compile of the matrices and their product together."""

import torch

from . import eager

REQUIRES = ("torch",)


@torch.compile(dynamic=False)
def gain_hc(z, alpha):
    """Gains of the composite and the column error; see eager.py for shapes."""
    return eager.gain_hc(z, alpha)
