"""The composite of L unconstrained matrices in fp64, and how far from balanced the single ones are."""

import torch


def gain_hc(z, alpha):
    """H_l = 1 + alpha tanh(z_l); H = H_L ... H_1: its largest absolute row sum and column sum."""
    one = torch.eye(z.shape[2], dtype=z.dtype, device=z.device)
    matrices = one + alpha * torch.tanh(z)
    composite = one
    for matrix in matrices:
        composite = matrix @ composite
    error = (matrices.sum(2) - 1).abs().amax((0, 2))
    return composite.abs().sum(2).amax(1), composite.abs().sum(1).amax(1), error
