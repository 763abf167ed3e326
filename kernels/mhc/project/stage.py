"""Project: all coefficients' raw projections and the token's norm, in one scan of the streams."""

from perflab import Normal, Stage, Tensor, Tolerance

EXACT_PRODUCTS = {
    "m": Tolerance(relative_l2=1e-5, elementwise=1e-4),
    "r": Tolerance(relative_l2=1e-6, elementwise=4e-6),
}

STAGE = Stage(
    dims=("T", "n", "C"),
    inputs={
        "x": Tensor("T n C", "stream", Normal()),
        # Values that tf32 holds exactly: products with bf16 streams are then exact, and rounding phi further shows.
        "phi": Tensor("n*C n*n+2*n", "tf32", Normal(std=0.02)),
    },
    outputs={"m": Tensor("T n*n+2*n", "fp32"), "r": Tensor("T", "fp32")},
    # The same for all dtypes: the outputs are fp32 and no rounding below fp32 is owed to the inputs.
    tolerances={"bf16": EXACT_PRODUCTS, "fp16": EXACT_PRODUCTS, "fp32": EXACT_PRODUCTS},
    params={"eps": 1e-20},
    supports={"n": (1, 2, 4, 8)},
    backward_reads=("x", "phi", "r"),
    source="arXiv 2512.24880, equations 14 and 15; eps from its table 5",
)
