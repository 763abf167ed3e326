"""Site: one residual site with the cheapest layer function there is, a gain per channel."""

from perflab import Normal, Stage, Tensor, Tolerance, Uniform

#: The layer function's input and output and their gradients are rounded to the streams' dtype on the way. In bf16 that
#: hides small mistakes of the coefficients: how the parts are put together is checked there, and the rest in fp32.
SUMS = ("grad_phi", "grad_b", "grad_w")
#: The gates' gradient is three sums over all tokens. Their terms may cancel by chance, and their rounding does not: its
#: relative error has a long tail from draw to draw; the probability of passing a bound falls with its third power. The
#: bounds are about ten times what one draw in fifty passes.
GATES = {"bf16": Tolerance(8e-2, 4e-1), "fp16": Tolerance(1e-2, 5e-2), "fp32": Tolerance(3e-5, 3e-4)}

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
        "bf16": {
            "*": Tolerance(relative_l2=5e-3, elementwise=4e-2),
            **dict.fromkeys(SUMS, Tolerance(8e-3, 4e-2)),
            "grad_a": GATES["bf16"],
        },
        "fp16": {
            "*": Tolerance(relative_l2=7e-4, elementwise=5e-3),
            **dict.fromkeys(SUMS, Tolerance(1e-3, 5e-3)),
            "grad_a": GATES["fp16"],
        },
        "fp32": {"*": Tolerance(relative_l2=1e-5, elementwise=1e-4), "grad_a": GATES["fp32"]},
    },
    params={"eps": 1e-20, "iterations": 20},
    supports={"n": (1, 2, 4, 8)},
    backward_reads=("x", "phi", "a", "b", "w"),
    source="arXiv 2512.24880, equations 3 and 14 to 19",
)
