"""The read weights, write weights and mixing matrices of a stack's sites, in fp32: table 3 leaves them out."""

from perflab.contract import ITEM_BYTES

from .table3_bytes import table3_bytes

UNIT, KIND, BETTER = "B", "exact", "none"


def coefficient_bytes(record, context):
    """n^2 + 2n numbers a token and site; None where `table3_bytes` is.

    They are small beside C, and rebuilding streams starts from them. An implementation may keep others, or none.
    Source: arXiv 2512.24880, equations 16 to 19.
    """
    if table3_bytes(record, context) is None:
        return None
    n = record.shape["n"]
    return record.shape["T"] * record.shape["L"] * (n * n + 2 * n) * ITEM_BYTES["fp32"]
