"""Gain of unconstrained hyper-connections: as the stage gain, for mixing matrices that nothing balances.

H_res = b_res + alpha tanh(z), with b_res the identity and z independent over sites and tokens: random matrices, not
those of a trained model. The gate alpha starts training at 0.01 and is learnt; where it ends the paper does not say.
"""

from perflab import Normal, Stage, Tensor, Tolerance

STAGE = Stage(
    # s: the standard deviation of z, which takes the place of the logits in the stage gain.
    dims=("T", "n", "L", "s"),
    inputs={"z": Tensor("L T n n", "fp32", Normal(std="s"), differentiable=False)},
    outputs={
        "gain_forward": Tensor("T", "fp32", differentiable=False),
        "gain_backward": Tensor("T", "fp32", differentiable=False),
        "column_error": Tensor("T", "fp32", differentiable=False),
    },
    tolerances={"fp32": {"*": Tolerance(relative_l2=5e-6, elementwise=1e-5)}},
    # Chosen, not measured: at this gate 60 random sites reach the size of the paper's gain, about 3000, at s = 8.
    params={"alpha": 0.3},
    supports={"n": (1, 2, 4, 8)},
    observed=("gain_forward", "gain_backward", "column_error"),
    source="arXiv 2512.24880, figure 3 and section 3.1; hyper-connections: arXiv 2409.19606",
)
