"""Bytes a token and site that a stack keeps beyond the paper's table 3; coefficients alone are 4(n^2 + 2n)."""

from .table3_bytes import table3_bytes

UNIT, KIND, BETTER = "B", "exact", "lower"
COLUMN = "beyond Table 3, a token and site"


def beyond_table3(record, context):
    """A difference, not a ratio: implementations keep different coefficients. None where `table3_bytes` is.

    Source: arXiv 2512.24880, table 3.
    """
    listed = table3_bytes(record, context)
    return None if listed is None else (record.memory.saved_bytes - listed) / (record.shape["T"] * record.shape["L"])
