"""Every read uses the streams after its site's write, not those before."""

import torch

from ..eager import recompute as right

REQUIRES = ("torch",)


def recompute(x, f, h_pre, h_post, h_res):
    """Wrong on purpose."""
    xs, us = right(x, f, h_pre, h_post, h_res)
    after = torch.cat([xs, xs[-1:]]) if len(xs) else x[None]
    return xs, (h_pre[..., None] * after.float()).sum(2).to(us.dtype)
