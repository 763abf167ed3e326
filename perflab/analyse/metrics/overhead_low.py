"""Lower end of the overhead's 95% interval, over rounds."""

from perflab.analyse.context import Context
from perflab.record import Record

UNIT, KIND, BETTER = "1", "sampled", "lower"


def overhead_low(record: Record, context: Context) -> float | None:
    """None for the baseline itself, and where the two were not sampled in rounds."""
    found = context.overhead(record)
    return found.low if found else None
