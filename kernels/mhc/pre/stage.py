"""Read: the weighted sum of the residual streams that feeds the layer function."""

from perflab import Normal, Stage, Tensor, Tolerance, Uniform

STAGE = Stage(
    dims=("T", "n", "C"),
    inputs={
        "x": Tensor("T n C", "stream", Normal()),
        "h_pre": Tensor("T n", "fp32", Uniform(0.0, 1.0)),
    },
    outputs={"u": Tensor("T C", "stream")},
    tolerances={
        "bf16": {"u": Tolerance(relative_l2=2e-3, elementwise=4e-3)},
        "fp16": {"u": Tolerance(relative_l2=3e-4, elementwise=5e-4)},
        "fp32": {"u": Tolerance(relative_l2=1e-6, elementwise=2e-6)},
    },
    supports={"n": (1, 2, 4, 8)},
    backward_reads=("x", "h_pre"),
    source="arXiv 2512.24880, section 4.3.1, F_pre",
)
