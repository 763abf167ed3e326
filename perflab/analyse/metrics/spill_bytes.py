"""Register spills of all kernels when compiled for the target."""

from perflab.analyse.context import Context
from perflab.record import Record

UNIT, KIND, BETTER = "B", "exact", "lower"


def spill_bytes(record: Record, context: Context) -> float | None:
    """None where no kernel was compiled."""
    kernels = record.compile.kernels if record.compile else []
    return sum(kernel.spill_bytes for kernel in kernels) if kernels else None
