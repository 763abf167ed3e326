"""A matrix product and a norm, each with its own scan of x, in fp32."""

import torch

REQUIRES = ("torch",)


def project(x, phi, eps):
    """Raw coefficients of every token and its norm.

    x      [T, n, C]         stream dtype
    phi    [n C, n^2 + 2n]   fp32, columns in the order pre, post, res
    gives  m [T, n^2 + 2n], r [T], both fp32
    """
    flat = x.flatten(1).float()
    # Autocast would round the product's inputs.
    with torch.autocast(x.device.type, enabled=False):
        return flat @ phi, (flat.square().mean(1) + eps).sqrt()
