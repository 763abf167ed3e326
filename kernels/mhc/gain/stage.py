"""Gain: how much the mixing matrices of L sites together can amplify a signal and its gradient.

Logits are independent over sites and tokens: random matrices, not those of a trained model. Rows of a mixing matrix sum
to 1 to rounding, so those of every product do, whatever the logits: its forward gain is 1, its backward gain at most n.
"""

from perflab import Normal, Stage, Tensor, Tolerance

STAGE = Stage(
    # t_max: iterations of Sinkhorn; s: the logits' standard deviation.
    dims=("T", "n", "L", "t_max", "s"),
    inputs={"logits": Tensor("L T n n", "fp32", Normal(std="s"), differentiable=False)},
    outputs={
        "gain_forward": Tensor("T", "fp32", differentiable=False),
        "gain_backward": Tensor("T", "fp32", differentiable=False),
        "column_error": Tensor("T", "fp32", differentiable=False),
    },
    tolerances={
        "fp32": {
            "*": Tolerance(relative_l2=5e-6, elementwise=1e-5),
            # A sum of n rounded numbers minus 1: the sum's rounding may be all that is left.
            "column_error": Tolerance(relative_l2=1e-5, elementwise=1e-4, absolute=2e-6),
        }
    },
    params={"iterations": "t_max"},
    supports={"n": (1, 2, 4, 8)},
    observed=("gain_forward", "gain_backward", "column_error"),
    source="arXiv 2512.24880, figures 3 and 7, equations 9 and 19",
)
