"""Recompute: the streams and reads of L sites, rebuilt from the first site's streams without the layer functions."""

from perflab import Normal, Stage, Tensor, Tolerance, Uniform

STAGE = Stage(
    dims=("T", "n", "C", "L"),
    inputs={
        "x": Tensor("T n C", "stream", Normal(), differentiable=False),
        "f": Tensor("L-1 T C", "stream", Normal(), differentiable=False),
        "h_pre": Tensor("L T n", "fp32", Uniform(0.0, 1.0), differentiable=False),
        "h_post": Tensor("L-1 T n", "fp32", Uniform(0.0, 2.0), differentiable=False),
        # A row's weights sum to 1 on average, as after Sinkhorn, so that the streams keep their size over the sites.
        "h_res": Tensor("L-1 T n n", "fp32", Uniform(0.0, 0.5), differentiable=False),
    },
    outputs={
        "xs": Tensor("L-1 T n C", "stream", differentiable=False),
        "us": Tensor("L T C", "stream", differentiable=False),
    },
    # Streams are rounded to their dtype between sites, so a chain of sites loses more than one.
    tolerances={
        "bf16": {"*": Tolerance(relative_l2=6e-3, elementwise=3e-2)},
        "fp16": {"*": Tolerance(relative_l2=8e-4, elementwise=4e-3)},
        "fp32": {"*": Tolerance(relative_l2=1e-6, elementwise=4e-6)},
    },
    supports={"n": (1, 2, 4, 8)},
    source="arXiv 2512.24880, section 4.3.2",
)
