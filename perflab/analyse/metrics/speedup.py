"""Latency of the group's eager implementation over this one's."""

from perflab.analyse.context import Context
from perflab.analyse.stats import median
from perflab.record import Record

UNIT, KIND, BETTER = "1", "sampled", "higher"


def speedup(record: Record, context: Context) -> float | None:
    """None unless both were timed in the same run."""
    baseline = context.baseline()
    if record.latency is None or baseline is None or baseline.latency is None:
        return None
    return median(baseline.latency.samples_s) / median(record.latency.samples_s)
