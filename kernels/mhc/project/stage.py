"""Project: all coefficients' raw projections and the token's norm, in one scan of the streams."""

from perflab import Normal, Stage, Tensor, Tolerance

EXACT_PRODUCTS = {
    "m": Tolerance(relative_l2=1e-5, elementwise=1e-4),
    # A sum of n C squares, in whatever order: added one after the other in fp32, 10240 of them lose about 1e-6.
    "r": Tolerance(relative_l2=4e-6, elementwise=2e-5),
    "grad_phi": Tolerance(relative_l2=1e-5, elementwise=1e-4),
}

STAGE = Stage(
    dims=("T", "n", "C"),
    inputs={
        # Tokens take the three scales in turn: at the second an eps of 1e-6, which peers have, changes the norm.
        "x": Tensor("T n C", "stream", Normal(std=(1.0, 1e-3, 0.0))),
        # Values that tf32 holds exactly: products with bf16 streams are then exact, and rounding phi further shows.
        "phi": Tensor("n*C n*n+2*n", "tf32", Normal(std=0.02)),
    },
    outputs={
        "m": Tensor("T n*n+2*n", "fp32"),
        # The norm's term of x's gradient is divided by n C: drawn as large as this, its mistakes show in any dtype.
        "r": Tensor("T", "fp32", Normal(std="n*C")),
    },
    # The outputs are fp32 in every case and owe no rounding to the inputs' dtype; only x's gradient has that dtype.
    tolerances={
        "bf16": {**EXACT_PRODUCTS, "grad_x": Tolerance(relative_l2=2e-3, elementwise=4e-3)},
        "fp16": {**EXACT_PRODUCTS, "grad_x": Tolerance(relative_l2=3e-4, elementwise=5e-4)},
        "fp32": {**EXACT_PRODUCTS, "grad_x": Tolerance(relative_l2=2e-6, elementwise=2e-5)},
    },
    params={"eps": 1e-20},
    supports={"n": (1, 2, 4, 8)},
    backward_reads=("x", "phi", "r"),
    source="arXiv 2512.24880, equations 14 and 15; eps from its table 5",
)
