"""Model FLOPs per second over the matrix product rate measured in the same run."""

from perflab.analyse.context import Context
from perflab.analyse.metrics.flops_per_second import flops_per_second
from perflab.record import Record

UNIT, KIND, BETTER = "1", "sampled", "higher"


def flops_utilisation(record: Record, context: Context) -> float | None:
    """None for what is no training step, was not timed, or runs without a rate in the record's dtype and threads."""
    rate, ceiling = flops_per_second(record, context), context.matmul_rate(record.dtype)
    if rate is None or ceiling is None or record.step is None:
        return None
    threads = (context.about.get("compute") or {}).get("threads")
    alike = record.device == "cuda" or (threads is not None and threads == record.step.threads)
    return rate / ceiling if alike else None
