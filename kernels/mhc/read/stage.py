"""Read: everything before the layer function, from the streams to its input and the write's coefficients."""

from perflab import Normal, Stage, Tensor, Tolerance, Uniform

#: fp32 results, and gradients of fp32 inputs, which owe no rounding to the streams' dtype.
FP32 = {
    **dict.fromkeys(("h_post", "h_res", "grad_phi"), Tolerance(relative_l2=1e-5, elementwise=1e-4)),
    # Sums over all tokens, which may nearly cancel.
    **dict.fromkeys(("grad_a", "grad_b"), Tolerance(relative_l2=1e-4, elementwise=4e-4)),
}
#: The terms of x's gradient may each be rounded to its dtype before they are added, as autograd does.
TERMS_ROUNDED = {
    "bf16": Tolerance(relative_l2=4e-3, elementwise=2e-2),
    "fp16": Tolerance(relative_l2=5e-4, elementwise=3e-3),
}

STAGE = Stage(
    dims=("T", "n", "C"),
    inputs={
        "x": Tensor("T n C", "stream", Normal()),
        "phi": Tensor("n*C n*n+2*n", "tf32", Normal(std=0.02)),
        # Far from the paper's start of 0.01, where a gate that is mixed up would hardly show.
        "a": Tensor("3", "fp32", Uniform(0.5, 1.5)),
        "b": Tensor("n*n+2*n", "fp32", Normal()),
    },
    outputs={
        "u": Tensor("T C", "stream"),
        "h_post": Tensor("T n", "fp32"),
        "h_res": Tensor("T n n", "fp32"),
    },
    tolerances={
        "bf16": {"u": Tolerance(relative_l2=2e-3, elementwise=4e-3), "grad_x": TERMS_ROUNDED["bf16"], **FP32},
        "fp16": {"u": Tolerance(relative_l2=3e-4, elementwise=5e-4), "grad_x": TERMS_ROUNDED["fp16"], **FP32},
        "fp32": {"*": Tolerance(relative_l2=1e-5, elementwise=5e-5), **FP32},
    },
    params={"eps": 1e-20, "iterations": 20},
    supports={"n": (1, 2, 4, 8)},
    backward_reads=("x", "phi", "a", "b"),
    source="arXiv 2512.24880, equations 14 to 19 and F_pre of section 4.3.1",
)
