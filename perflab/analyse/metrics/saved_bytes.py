"""Bytes alive between forward and backward only because backward needs them."""

from perflab.analyse.context import Context
from perflab.record import Record

UNIT, KIND, BETTER = "B", "exact", "lower"


def saved_bytes(record: Record, context: Context) -> float | None:
    """Inputs and parameters are not counted; None where nothing was measured, or the pass has no backward."""
    return record.memory.saved_bytes if record.memory else None
