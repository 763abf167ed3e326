"""What the paper's table 3 keeps between forward and backward of a stack in recompute blocks."""

import math

from perflab.contract import ITEM_BYTES

UNIT, KIND, BETTER = "B", "exact", "none"
COLUMN = "Table 3"


def table3_bytes(record, context):
    """Elements a token: nC for every block but the first, whose streams are the input, and C for F's output of a site.

    None for another stage, a pass without a backward, L_r = 0 (all is kept), or where no memory was measured to put
    beside it.
    Source: arXiv 2512.24880, table 3.
    """
    sizes = record.shape
    if record.stage != "mhc/stack" or record.memory is None or record.memory.saved_bytes is None or not sizes["L_r"]:
        return None
    first_streams = sizes["n"] * (math.ceil(sizes["L"] / sizes["L_r"]) - 1)
    return sizes["T"] * sizes["C"] * (first_streams + sizes["L"]) * ITEM_BYTES[record.dtype]
