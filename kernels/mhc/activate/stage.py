"""Activate: raw projections become read weights, write weights and mixing logits."""

from perflab import Normal, Stage, Tensor, Tolerance, Uniform

STAGE = Stage(
    dims=("T", "n"),
    inputs={
        "m": Tensor("T n*n+2*n", "fp32", Normal(std=2.0)),
        "r": Tensor("T", "fp32", Uniform(0.5, 2.0)),
        # Far from the paper's start of 0.01, where a gate that is mixed up would hardly show.
        "a": Tensor("3", "fp32", Uniform(0.5, 1.5)),
        "b": Tensor("n*n+2*n", "fp32", Normal()),
    },
    outputs={
        "h_pre": Tensor("T n", "fp32"),
        "h_post": Tensor("T n", "fp32"),
        "logits": Tensor("T n n", "fp32"),
    },
    tolerances={
        "fp32": {
            "*": Tolerance(relative_l2=1e-6, elementwise=4e-6),
            # Sums over all tokens, which may nearly cancel.
            **dict.fromkeys(("grad_a", "grad_b"), Tolerance(relative_l2=1e-5, elementwise=1e-4)),
        }
    },
    supports={"n": (1, 2, 4, 8)},
    backward_reads=("m", "r", "a", "b"),
    source="arXiv 2512.24880, equations 16 to 18",
)
