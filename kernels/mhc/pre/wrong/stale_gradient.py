"""The weights' gradient is taken against the read itself, not against each stream."""

import torch

from ..eager import pre as right

REQUIRES = ("torch",)


class _Pre(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, h_pre):
        u = right(x, h_pre)
        ctx.save_for_backward(u, h_pre)
        return u

    @staticmethod
    def backward(ctx, du):
        u, h_pre = ctx.saved_tensors
        dx = (h_pre[:, :, None] * du[:, None, :].float()).to(u.dtype)
        return dx, (du.float() * u.float()).sum(1, keepdim=True).expand_as(h_pre)


def pre(x, h_pre):
    """Wrong on purpose."""
    return _Pre.apply(x, h_pre)
