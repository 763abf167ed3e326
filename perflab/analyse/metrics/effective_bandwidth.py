"""Compulsory bytes over median latency: what a perfect implementation would need to move in that time."""

from perflab.analyse.context import Context
from perflab.analyse.stats import median
from perflab.record import Record

UNIT, KIND, BETTER = "B/s", "sampled", "higher"


def effective_bandwidth(record: Record, context: Context) -> float | None:
    """Comparable between implementations, whatever bytes they really move."""
    if record.latency is None or record.compulsory is None:
        return None
    fewest = record.compulsory.read_bytes + record.compulsory.write_bytes
    # A pass that need not move anything has no bandwidth.
    return fewest / median(record.latency.samples_s) if fewest else None
