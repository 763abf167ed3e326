"""torch.compile of the broadcast multiply and sum: one fused kernel."""

import torch

REQUIRES = ("torch",)


@torch.compile(dynamic=False)
def pre(x, h_pre):
    """Weighted sum of the residual streams; see eager.py for shapes."""
    return (h_pre[:, :, None] * x.float()).sum(1).to(x.dtype)
