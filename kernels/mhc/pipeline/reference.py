"""The losses of one process that takes the same steps; what a step itself must give, mhc/step holds to fp64."""

from ..model.decoder import Design
from ..model.training import Training


def pipeline(shape, dtype, device, seed, steps, residual, recompute):
    """Losses of the first `steps` steps, without micro-batches."""
    alone = Training(shape, Design(residual, recompute=recompute == "yes"), dtype, device, seed)
    return [alone.step(alone.batch(index)).item() for index in range(steps)]
