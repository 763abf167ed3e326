"""Residual: the plain merge that mHC replaces, the baseline of every comparison of bytes."""

from perflab import Normal, Stage, Tensor, Tolerance

#: The gradients are the incoming one, to the bit.
HANDED_ON = dict.fromkeys(("grad_x", "grad_f"), Tolerance(relative_l2=1e-9, elementwise=1e-9))

STAGE = Stage(
    dims=("T", "C"),
    inputs={"x": Tensor("T C", "stream", Normal()), "f": Tensor("T C", "stream", Normal())},
    outputs={"y": Tensor("T C", "stream")},
    tolerances={
        "bf16": {**HANDED_ON, "y": Tolerance(relative_l2=2e-3, elementwise=4e-3)},
        "fp16": {**HANDED_ON, "y": Tolerance(relative_l2=3e-4, elementwise=5e-4)},
        "fp32": {**HANDED_ON, "y": Tolerance(relative_l2=1e-6, elementwise=1e-6)},
    },
    # The gradients of x and f are the incoming one.
    backward_moves=False,
    source="arXiv 2512.24880, table 2, first rows",
)
