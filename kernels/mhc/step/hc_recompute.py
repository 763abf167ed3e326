"""Hyper-connections that nothing constrains, in eager PyTorch; streams are rebuilt in backward."""

from ..model.training import Design, Training

REQUIRES = ("torch",)
CONVENTION = {"residual": "hc"}


def step(shape, dtype, device, seed):
    """A decoder of a preset's sizes, in training."""
    return Training(shape, Design("hc", recompute=True), dtype, device, seed)
