"""Model FLOPs of a step over its median time; recomputation does not count."""

from perflab.analyse.context import Context
from perflab.analyse.stats import median
from perflab.record import Record

UNIT, KIND, BETTER = "1/s", "sampled", "higher"


def flops_per_second(record: Record, context: Context) -> float | None:
    """None for what is no training step, or was not timed."""
    return record.step.flops / median(record.latency.samples_s) if record.step and record.latency else None
