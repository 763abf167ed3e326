"""Effective bandwidth over the memory ceiling measured in the same run."""

from perflab.analyse.context import Context
from perflab.analyse.metrics.effective_bandwidth import effective_bandwidth
from perflab.record import Record

UNIT, KIND, BETTER = "1", "sampled", "higher"


def fraction_of_peak(record: Record, context: Context) -> float | None:
    """None for a working set that the last-level cache may hold: that is no memory bandwidth."""
    bandwidth, ceiling = effective_bandwidth(record, context), context.ceiling()
    if bandwidth is None or ceiling is None or context.in_cache(record) is not False:
        return None
    return bandwidth / ceiling
