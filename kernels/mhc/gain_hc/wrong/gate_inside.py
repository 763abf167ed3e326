"""The gate inside the tanh, which bounds what the gate is there to scale."""

import torch

from ...gain._composite import gains

REQUIRES = ("torch",)


def gain_hc(z, alpha):
    """Wrong on purpose."""
    return gains(torch.eye(z.shape[2], device=z.device) + (alpha * z).tanh())
