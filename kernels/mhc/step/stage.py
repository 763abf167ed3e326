"""Step: one optimiser step of a DeepSeek-V3 style decoder, whose residual design is what competes."""

from perflab import Tolerance, TrainingStage

from ..model.presets import presets

#: An update is nearly the sign of a gradient times the rate, in weights that are a hundred times larger or more: fp32
#: keeps four digits of it.
UPDATE = Tolerance(relative_l2=1e-3, elementwise=1e-2)

STAGE = TrainingStage(
    dims=(*next(iter(presets().values())).shape(), "n"),
    tolerances={
        # In bf16 experts are chosen by rounded scores, and a whole model rounds its streams at every site.
        "bf16": {
            "loss": Tolerance(relative_l2=1e-2, elementwise=1e-2),
            "grad": Tolerance(relative_l2=2e-1, elementwise=2.0),
            "update": UPDATE,
        },
        "fp32": {
            "loss": Tolerance(relative_l2=1e-6, elementwise=1e-6),
            "grad": Tolerance(relative_l2=1e-4, elementwise=1e-2),
            "update": UPDATE,
        },
    },
    # Experts' scores lie between 0 and 1.
    slack={"bf16": 2e-2, "fp32": 1e-5},
    source="arXiv 2512.24880, section 4.3 and table 5; arXiv 2412.19437",
    baseline="residual",
    presets={name: {**preset.shape(), "n": 4} for name, preset in presets().items()},
    # The fp64 reference computes every expert for every token, and holds every weight twice.
    checked_at={"layers": 4, "B": 1, "S": 64, "routed": 16, "vocabulary": 512},
)
