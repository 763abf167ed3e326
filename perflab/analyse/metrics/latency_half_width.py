"""Half the 95% interval of the median latency, relative to it."""

from perflab.analyse.context import Context
from perflab.analyse.overhead import blocks
from perflab.analyse.stats import relative_half_width
from perflab.record import Record

UNIT, KIND, BETTER = "1", "sampled", "lower"


def latency_half_width(record: Record, context: Context) -> float | None:
    """Within-run spread only: processes and machines differ by more. Of steps, the spread of their blocks."""
    if record.latency is None:
        return None
    return relative_half_width(blocks(record.latency) if record.step else record.latency.samples_s)
