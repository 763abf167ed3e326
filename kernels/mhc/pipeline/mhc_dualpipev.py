"""mHC, eager; DualPipe cut in half, forwards beside backwards."""

from ..model.decoder import Design
from ._run import run

REQUIRES = ("torch",)
CONVENTION = {"residual": "mhc", "recompute": "no"}


def pipeline(shape, dtype, device, seed, steps):
    """`steps` steps of a preset's decoder on p processes, in m micro-batches."""
    return run(Design("mhc"), "DualPipeV", shape, dtype, device, seed, steps)
