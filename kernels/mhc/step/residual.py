"""The plain residual, x + F(norm(x))."""

from ..model.training import Design, Training

REQUIRES = ("torch",)
CONVENTION = {"residual": "residual"}


def step(shape, dtype, device, seed):
    """A decoder of a preset's sizes, in training."""
    return Training(shape, Design("residual"), dtype, device, seed)
