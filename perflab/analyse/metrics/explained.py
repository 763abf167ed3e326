"""Share of a step's overhead that its named parts, told apart by profile, sum up to."""

from perflab.analyse import parts
from perflab.analyse.context import Context
from perflab.analyse.overhead import overhead
from perflab.record import Record

UNIT, KIND, BETTER = "1", "sampled", "none"
COLUMN = "explained"


def explained(record: Record, context: Context) -> float | None:
    """None for the baseline, where one of the two was not timed or not told apart, and where no overhead is known.

    Of a difference whose interval holds 0 there is no share.
    """
    baseline = context.baseline()
    if baseline is None or baseline is record or record.latency is None or baseline.latency is None:
        return None
    known = overhead(record.latency, baseline.latency)
    return parts.explained(record, baseline) if known and known.low > 0 else None
