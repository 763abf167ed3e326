"""A pipeline's step by simulation, from the durations of its actions and its link as measured."""

from perflab.analyse.context import Context
from perflab.record import Record

UNIT, KIND, BETTER = "s", "sampled", "none"
COLUMN = "simulated"


def predicted_s(record: Record, context: Context) -> float | None:
    """None for what is no pipeline."""
    return record.step.predicted_s if record.step else None
