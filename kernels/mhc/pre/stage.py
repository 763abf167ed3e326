"""Read: the weighted sum of the residual streams that feeds the layer function."""

from perflab import Normal, Stage, Tensor, Tolerance, Uniform

#: Gradients of fp32 inputs owe no rounding to the streams' dtype.
FP32_GRADIENT = Tolerance(relative_l2=2e-6, elementwise=1e-5)

STAGE = Stage(
    dims=("T", "n", "C"),
    inputs={
        "x": Tensor("T n C", "stream", Normal()),
        "h_pre": Tensor("T n", "fp32", Uniform(0.0, 1.0)),
    },
    outputs={"u": Tensor("T C", "stream")},
    tolerances={
        "bf16": {"*": Tolerance(relative_l2=2e-3, elementwise=4e-3), "grad_h_pre": FP32_GRADIENT},
        "fp16": {"*": Tolerance(relative_l2=3e-4, elementwise=5e-4), "grad_h_pre": FP32_GRADIENT},
        "fp32": {"*": Tolerance(relative_l2=1e-6, elementwise=2e-6), "grad_h_pre": FP32_GRADIENT},
    },
    supports={"n": (1, 2, 4, 8)},
    backward_reads=("x", "h_pre"),
    source="arXiv 2512.24880, section 4.3.1, F_pre",
)
