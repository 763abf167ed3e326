"""Bytes that one call moves, by the best source the record has."""

from perflab.analyse.context import Context
from perflab.analyse.traffic import best
from perflab.record import Record

UNIT, KIND, BETTER = "B", "exact", "lower"


def traffic_bytes(record: Record, context: Context) -> float | None:
    """Read and written together."""
    traffic = best(record)
    return traffic.read_bytes + traffic.write_bytes if traffic else None
