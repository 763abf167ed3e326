"""Most bytes alive at once during the pass, above those alive before it."""

from perflab.analyse.context import Context
from perflab.record import Record

UNIT, KIND, BETTER = "B", "exact", "lower"


def peak_bytes(record: Record, context: Context) -> float | None:
    """None where nothing was measured."""
    return record.memory.peak_bytes if record.memory else None
