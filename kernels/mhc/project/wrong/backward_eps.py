"""Backward adds an eps of 1e-6 where forward added 1e-20."""

import torch

from ..eager import project as right

REQUIRES = ("torch",)


class _Project(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, phi, eps):
        ctx.save_for_backward(x, phi)
        return right(x, phi, eps)

    @staticmethod
    def backward(ctx, dm, dr):
        x, phi = ctx.saved_tensors
        flat = x.flatten(1).float()
        _, r = right(x, phi, 1e-6)
        dx = dm @ phi.T + (dr / r)[:, None] * flat / flat.shape[1]
        return dx.view(x.shape).to(x.dtype), flat.T @ dm, None


def project(x, phi, eps):
    """Wrong on purpose."""
    return _Project.apply(x, phi, eps)
