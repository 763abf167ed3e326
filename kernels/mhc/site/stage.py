"""Site: one residual site with the cheapest layer function there is, a gain per channel."""

from perflab import Normal, Stage, Tensor, Tolerance, Uniform

#: The input of the layer function, its output and their gradients are rounded to the streams' dtype on the way.
ROUNDED = dict.fromkeys(("grad_phi", "grad_a", "grad_b", "grad_w"), Tolerance(relative_l2=8e-3, elementwise=4e-2))

STAGE = Stage(
    dims=("T", "n", "C"),
    inputs={
        "x": Tensor("T n C", "stream", Normal()),
        "phi": Tensor("n*C n*n+2*n", "tf32", Normal(std=0.02)),
        "a": Tensor("3", "fp32", Uniform(0.5, 1.5)),
        "b": Tensor("n*n+2*n", "fp32", Normal()),
        # F(u) = w u stands for any layer function: it has an input, an output and a parameter, and mixes nothing.
        "w": Tensor("C", "stream", Normal()),
    },
    outputs={"y": Tensor("T n C", "stream")},
    tolerances={
        "bf16": {"*": Tolerance(relative_l2=5e-3, elementwise=4e-2), **ROUNDED},
        "fp16": {"*": Tolerance(relative_l2=7e-4, elementwise=5e-3), **ROUNDED},
        "fp32": {"*": Tolerance(relative_l2=1e-5, elementwise=1e-4)},
    },
    params={"eps": 1e-20, "iterations": 20},
    supports={"n": (1, 2, 4, 8)},
    backward_reads=("x", "phi", "a", "b", "w"),
    source="arXiv 2512.24880, equations 3 and 14 to 19",
)
