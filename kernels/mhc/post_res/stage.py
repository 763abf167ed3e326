"""Write: the mixed residual streams and the layer's weighted output, merged."""

from perflab import Normal, Stage, Tensor, Tolerance, Uniform

#: Gradients of fp32 inputs owe no rounding to the streams' dtype.
FP32_GRADIENTS = dict.fromkeys(("grad_h_post", "grad_h_res"), Tolerance(relative_l2=2e-6, elementwise=1e-5))

STAGE = Stage(
    dims=("T", "n", "C"),
    inputs={
        "x": Tensor("T n C", "stream", Normal()),
        "f": Tensor("T C", "stream", Normal()),
        "h_post": Tensor("T n", "fp32", Uniform(0.0, 2.0)),
        # Not near the identity, where a matrix and its transpose look alike.
        "h_res": Tensor("T n n", "fp32", Uniform(0.0, 1.0)),
    },
    outputs={"y": Tensor("T n C", "stream")},
    tolerances={
        "bf16": {"*": Tolerance(relative_l2=2e-3, elementwise=4e-3), **FP32_GRADIENTS},
        "fp16": {"*": Tolerance(relative_l2=3e-4, elementwise=5e-4), **FP32_GRADIENTS},
        "fp32": {"*": Tolerance(relative_l2=1e-6, elementwise=2e-6), **FP32_GRADIENTS},
    },
    supports={"n": (1, 2, 4, 8)},
    backward_reads=("x", "f", "h_post", "h_res"),
    source="arXiv 2512.24880, section 4.3.1, F_post,res",
)
