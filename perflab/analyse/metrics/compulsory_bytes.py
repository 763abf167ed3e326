"""The fewest bytes that the contract allows: inputs once, outputs once."""

from perflab.analyse.context import Context
from perflab.record import Record

UNIT, KIND, BETTER = "B", "exact", "none"


def compulsory_bytes(record: Record, context: Context) -> float | None:
    """Read and written together."""
    return record.compulsory.read_bytes + record.compulsory.write_bytes if record.compulsory else None
