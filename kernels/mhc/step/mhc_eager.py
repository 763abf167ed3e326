"""mHC in eager PyTorch."""

from ..model.training import Design, Training

REQUIRES = ("torch",)
CONVENTION = {"residual": "mhc"}


def step(shape, dtype, device, seed):
    """A decoder of a preset's sizes, in training."""
    return Training(shape, Design("mhc", "eager"), dtype, device, seed)
