"""The identity plus gated tanh, then the product of the sites' matrices, site by site."""

import torch

from ..gain._composite import gains

REQUIRES = ("torch",)


def gain_hc(z, alpha):
    """Gains of the composite of H_l = 1 + alpha tanh(z_l), and the column error.

    z      [L, T, n, n] fp32
    gives  [T], [T], [T] fp32, as gain/_composite.py
    """
    return gains(torch.eye(z.shape[2], device=z.device) + alpha * z.tanh())
