"""What the paper's equation 20 minimises: all blocks' first streams, and what one block is rebuilt to, at once."""

import math

from perflab.contract import ITEM_BYTES

UNIT, KIND, BETTER = "B", "exact", "none"
COLUMN = "Eq. 20"


def eq20_bytes(record, context):
    """nC ceil(L / L_r) + (n + 2) C L_r elements a token; None but for a stack in recompute blocks.

    F's outputs and coefficients, which no L_r changes, are not in it.
    Source: arXiv 2512.24880, equation 20.
    """
    sizes = record.shape
    if record.stage != "mhc/stack" or record.memory is None or not sizes["L_r"]:
        return None
    return sizes["T"] * sizes["C"] * elements(sizes["n"], sizes["L"], sizes["L_r"]) * ITEM_BYTES[record.dtype]


def elements(n: int, L: int, L_r: int) -> int:
    """Equation 20's elements a token over C."""
    return n * math.ceil(L / L_r) + (n + 2) * L_r
