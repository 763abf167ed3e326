"""Weight decay goes through Adam's moments, as a part of the gradient."""

import torch

from ...model.training import OPTIMISER, Design, Training

REQUIRES = ("torch",)
CONVENTION = {"residual": "residual"}


class Coupled(Training):
    """Wrong on purpose."""

    def _start_optimiser(self):
        self.optimiser = torch.optim.Adam(self.weights.values(), **OPTIMISER)


def step(shape, dtype, device, seed):
    """A decoder of a preset's sizes, in training."""
    return Coupled(shape, Design("residual"), dtype, device, seed)
