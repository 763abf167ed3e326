"""The measured peak above what equation 20 counts: where its law holds, the same for every block L_r."""

from .eq20_bytes import eq20_bytes

UNIT, KIND, BETTER = "B", "exact", "lower"
COLUMN = "peak - Eq. 20"


def peak_beyond_eq20(record, context):
    """F's outputs, coefficients, gradients and temporaries; None but for a whole training step of a stack.

    Source: arXiv 2512.24880, equation 20.
    """
    counted = eq20_bytes(record, context)
    if counted is None or record.pass_ != "forward_backward":
        return None
    return record.memory.peak_bytes - counted
