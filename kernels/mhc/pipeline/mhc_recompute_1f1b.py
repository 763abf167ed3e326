"""mHC, eager, streams rebuilt in backward; one forward, one backward."""

from ..model.decoder import Design
from ._run import run

REQUIRES = ("torch",)
CONVENTION = {"residual": "mhc", "recompute": "yes"}


def pipeline(shape, dtype, device, seed, steps):
    """`steps` steps of a preset's decoder on p processes, in m micro-batches."""
    return run(Design("mhc", recompute=True), "1F1B", shape, dtype, device, seed, steps)
