"""mHC on Triton's kernels: a fused read, a fused write."""

from ..model.training import Design, Training

REQUIRES = ("torch", "triton")
CONVENTION = {"residual": "mhc"}


def step(shape, dtype, device, seed):
    """A decoder of a preset's sizes, in training."""
    return Training(shape, Design("mhc", "triton"), dtype, device, seed)
