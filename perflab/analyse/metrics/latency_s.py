"""Median seconds per call, of native cases only."""

from perflab.analyse.context import Context
from perflab.analyse.stats import median
from perflab.record import Record

UNIT, KIND, BETTER = "s", "sampled", "lower"


def latency_s(record: Record, context: Context) -> float | None:
    """The median of the samples."""
    return median(record.latency.samples_s) if record.latency else None
