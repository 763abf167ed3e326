"""Traffic over compulsory bytes."""

from perflab.analyse.context import Context
from perflab.analyse.traffic import best
from perflab.record import Record

UNIT, KIND, BETTER = "1", "exact", "lower"


def amplification(record: Record, context: Context) -> float | None:
    """1 is the fewest bytes possible; None when nothing was counted or nothing must move."""
    traffic, fewest = best(record), record.compulsory
    if traffic is None or fewest is None or fewest.read_bytes + fewest.write_bytes == 0:
        return None
    return (traffic.read_bytes + traffic.write_bytes) / (fewest.read_bytes + fewest.write_bytes)
