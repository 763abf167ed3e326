"""torch.compile of a broadcast multiply and sum: one fused kernel reads each byte once."""

import torch

REQUIRES = ("torch",)


@torch.compile(dynamic=False)
def post_res(x, f, h_post, h_res):
    """Mixed streams plus the layer's output; see eager.py for shapes."""
    mixed = (h_res[:, :, :, None] * x.float()[:, None, :, :]).sum(2)
    return (mixed + h_post[:, :, None] * f[:, None, :].float()).to(x.dtype)
