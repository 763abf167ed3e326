"""1 if the last-level cache may hold the working set, so that the bandwidth is not memory's; else 0."""

from perflab.analyse.context import Context
from perflab.record import Record

UNIT, KIND, BETTER = "1", "exact", "none"


def in_cache(record: Record, context: Context) -> float | None:
    """None for cases without a latency, and where the cache's size is not known."""
    cached = context.in_cache(record) if record.latency else None
    return None if cached is None else float(cached)
