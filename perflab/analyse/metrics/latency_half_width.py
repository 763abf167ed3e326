"""Half the 95% interval of the median latency, relative to it."""

from perflab.analyse.context import Context
from perflab.analyse.stats import relative_half_width
from perflab.record import Record

UNIT, KIND, BETTER = "1", "sampled", "lower"


def latency_half_width(record: Record, context: Context) -> float | None:
    """Within-run spread only: processes and machines differ by more."""
    return relative_half_width(record.latency.samples_s) if record.latency else None
