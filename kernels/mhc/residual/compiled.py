"""torch.compile of one addition: nothing to fuse, so any difference to eager is the compiler's overhead."""

import torch

REQUIRES = ("torch",)


@torch.compile(dynamic=False)
def residual(x, f):
    """The plain residual merge; see eager.py for shapes."""
    return x + f
