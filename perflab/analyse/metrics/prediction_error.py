"""The simulated step over the measured median, less one."""

from perflab.analyse.context import Context
from perflab.analyse.stats import median
from perflab.record import Record

UNIT, KIND, BETTER = "1", "sampled", "none"
COLUMN = "off by"


def prediction_error(record: Record, context: Context) -> float | None:
    """None for what is no pipeline."""
    return (
        record.step.predicted_s / median(record.latency.samples_s) - 1
        if record.step and record.step.predicted_s and record.latency
        else None
    )
