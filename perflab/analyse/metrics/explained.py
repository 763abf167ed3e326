"""Share of a step's overhead that its named parts, told apart by profile, sum up to."""

from perflab.analyse import parts
from perflab.analyse.context import Context
from perflab.record import Record

UNIT, KIND, BETTER = "1", "sampled", "none"
COLUMN = "explained"


def explained(record: Record, context: Context) -> float | None:
    """None for the baseline, and where one of the two was not timed or not told apart."""
    baseline = context.baseline()
    if baseline is None or baseline is record or record.step is None:
        return None
    return parts.explained(record, baseline)
