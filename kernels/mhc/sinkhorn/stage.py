"""Sinkhorn: mixing logits become doubly stochastic matrices, columns first and rows last."""

from perflab import Normal, Stage, Tensor, Tolerance

STAGE = Stage(
    dims=("T", "n"),
    # Tokens take the three scales in turn. At 1 a wrong order hides behind rounding, at 8 columns are far from done.
    inputs={"logits": Tensor("T n n", "fp32", Normal(std=(1.0, 3.0, 8.0)))},
    outputs={"h_res": Tensor("T n n", "fp32")},
    tolerances={
        "fp32": {
            "h_res": Tolerance(relative_l2=5e-6, elementwise=5e-5),
            "grad_logits": Tolerance(relative_l2=1e-5, elementwise=1e-4),
        }
    },
    params={"iterations": 20},
    supports={"n": (1, 2, 4, 8)},
    backward_reads=("logits",),
    source="arXiv 2512.24880, equations 9 and 19",
)
