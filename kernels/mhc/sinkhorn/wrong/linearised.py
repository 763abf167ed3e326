"""Backward takes the result for a fixed point and differentiates there, instead of through the iterations."""

import torch

from ..eager import sinkhorn as right

REQUIRES = ("torch",)


class _Sinkhorn(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits, iterations):
        matrix = right(logits, iterations)
        ctx.save_for_backward(matrix)
        return matrix

    @staticmethod
    def backward(ctx, gradient):
        (matrix,) = ctx.saved_tensors
        # dM = M (dL - alpha 1^T - 1 beta^T), where alpha and beta keep the sums of rows and columns.
        product = matrix * gradient
        identity = torch.eye(matrix.shape[1], dtype=matrix.dtype, device=matrix.device).expand_as(matrix)
        system = torch.cat([torch.cat([identity, matrix], 2), torch.cat([matrix.mT, identity], 2)], 1)
        sums = torch.cat([product.sum(2), product.sum(1)], 1)
        alpha, beta = (torch.linalg.pinv(system, hermitian=True) @ sums[:, :, None])[..., 0].chunk(2, 1)
        return product - matrix * (alpha[:, :, None] + beta[:, None, :]), None


def sinkhorn(logits, iterations):
    """Wrong on purpose."""
    return _Sinkhorn.apply(logits, iterations)
