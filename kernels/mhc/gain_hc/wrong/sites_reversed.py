"""The product in the wrong order: H_1 ... H_L, as if the last site came first."""

import torch

from ...gain._composite import gains

REQUIRES = ("torch",)


def gain_hc(z, alpha):
    """Wrong on purpose."""
    return gains((torch.eye(z.shape[2], device=z.device) + alpha * z.tanh()).flip(0))
