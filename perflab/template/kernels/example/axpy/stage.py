"""Axpy: a scaled vector added to another, the smallest stage there is."""

from perflab import Normal, Stage, Tensor, Tolerance

STAGE = Stage(
    dims=("N",),
    inputs={"x": Tensor("N", "stream", Normal()), "y": Tensor("N", "stream", Normal())},
    outputs={"z": Tensor("N", "stream")},
    params={"alpha": 3.0},
    tolerances={
        "bf16": {"z": Tolerance(relative_l2=2e-3, elementwise=4e-3)},
        "fp16": {"z": Tolerance(relative_l2=3e-4, elementwise=5e-4)},
        "fp32": {"z": Tolerance(relative_l2=1e-6, elementwise=1e-6)},
    },
    source="BLAS level 1",
)
