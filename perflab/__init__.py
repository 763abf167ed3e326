"""perflab: declare a stage once, drop implementations beside it, get checked and comparable numbers."""

from perflab.contract import Normal, Stage, Tensor, Tolerance, Uniform, Unsupported
from perflab.training import PipelineStage, TrainingStage

__all__ = ["Normal", "PipelineStage", "Stage", "Tensor", "Tolerance", "TrainingStage", "Uniform", "Unsupported", "load"]
__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    """`perflab.load`, found when first asked for: a contract needs no catalogue."""
    if name == "load":
        from perflab.catalogue import load

        return load
    raise AttributeError(f"module 'perflab' has no attribute {name!r}")
