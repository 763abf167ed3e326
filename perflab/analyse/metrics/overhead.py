"""Time over the group's baseline, as a share of the baseline's: the median over rounds in which both were sampled."""

from perflab.analyse.context import Context
from perflab.record import Record

UNIT, KIND, BETTER = "1", "sampled", "lower"


def overhead(record: Record, context: Context) -> float | None:
    """None for the baseline itself, and where the two were not sampled in rounds."""
    found = context.overhead(record)
    return found.share if found else None
