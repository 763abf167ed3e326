"""Stack: L residual sites in a row, which keep for backward what a recompute block of L_r sites needs."""

from perflab import Normal, Stage, Tensor, Tolerance, Uniform

#: Streams and the layer functions' inputs and outputs are rounded to their dtype at every site. In 16 bits that hides
#: small mistakes: what is checked there is how the sites are put together; fp32 checks the rest.
ROUNDED = {
    "bf16": {"*": Tolerance(relative_l2=4e-2, elementwise=3e-1)},
    "fp16": {"*": Tolerance(relative_l2=5e-3, elementwise=4e-2)},
}

STAGE = Stage(
    dims=("T", "n", "C", "L", "L_r"),
    inputs={
        "x": Tensor("T n C", "stream", Normal()),
        "phi": Tensor("L n*C n*n+2*n", "tf32", Normal(std=0.02)),
        "a": Tensor("L 3", "fp32", Uniform(0.5, 1.5)),
        "b": Tensor("L n*n+2*n", "fp32", Normal()),
        # The layer functions are F(v) = w v of the normalised read, whose norm has the weight g.
        "g": Tensor("L C", "fp32", Uniform(0.5, 1.5)),
        "w": Tensor("L C", "stream", Normal()),
    },
    outputs={"y": Tensor("T n C", "stream")},
    tolerances={**ROUNDED, "fp32": {"*": Tolerance(relative_l2=1e-5, elementwise=1e-4)}},
    # L_r = 0 keeps everything: each implementation's own way without recomputation.
    params={"block": "L_r", "eps": 1e-20, "iterations": 20},
    supports={"n": (1, 2, 4, 8)},
    backward_reads=("x", "phi", "a", "b", "g", "w"),
    source="arXiv 2512.24880, section 4.3.2, table 3 and equation 20",
)
