"""The last token is left unwritten, as by a kernel whose mask ends one row early."""

import torch

REQUIRES = ("torch",)


def residual(x, f):
    """Wrong on purpose."""
    y = torch.empty_like(x)
    torch.add(x[:-1], f[:-1], out=y[:-1])
    return y
