"""Pipeline: one optimiser step of a decoder whose layers are shared out among p processes, in m micro-batches."""

from perflab import PipelineStage, Tolerance

from ..model.presets import presets

STAGE = PipelineStage(
    dims=(*next(iter(presets().values())).shape(), "n", "p", "m"),
    # Losses after updates: Adam's first steps are the signs of gradients, which rounding near zero can turn.
    tolerances={
        "bf16": {"losses": Tolerance(relative_l2=1e-2, elementwise=1e-2)},
        "fp32": {"losses": Tolerance(relative_l2=1e-4, elementwise=1e-4)},
    },
    source="arXiv 2512.24880, section 4.3.3; schedules: torch.distributed.pipelining",
    baseline="residual_1f1b",
    presets={name: {**preset.shape(), "n": 4} for name, preset in presets().items()},
)
