"""Kernels (or moving operations) that one call launches, by the source of its traffic."""

from perflab.analyse.context import Context
from perflab.analyse.traffic import best
from perflab.record import Record

UNIT, KIND, BETTER = "1", "exact", "lower"


def launches(record: Record, context: Context) -> float | None:
    """None when nothing was counted."""
    traffic = best(record)
    return traffic.launches if traffic else None
