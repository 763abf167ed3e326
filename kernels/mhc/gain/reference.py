"""The composite of L balanced matrices in fp64, and how far from balanced the single ones are."""

import torch


def gain(logits, iterations):
    """H_l from exp(logits), columns first, rows last; H = H_L ... H_1: its largest row sum and largest column sum."""
    matrices = (logits - logits.amax((2, 3), keepdim=True)).exp()
    for _ in range(iterations):
        matrices = matrices / matrices.sum(2, keepdim=True)
        matrices = matrices / matrices.sum(3, keepdim=True)
    composite = torch.eye(logits.shape[2], dtype=logits.dtype, device=logits.device)
    for matrix in matrices:
        composite = matrix @ composite
    error = (matrices.sum(2) - 1).abs().amax((0, 2))
    return composite.abs().sum(2).amax(1), composite.abs().sum(1).amax(1), error
