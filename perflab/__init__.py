"""perflab: declare a stage once, drop implementations beside it, get checked and comparable numbers."""

from perflab.contract import Normal, Stage, Tensor, Tolerance, Uniform, Unsupported

__all__ = ["Normal", "Stage", "Tensor", "Tolerance", "Uniform", "Unsupported"]
__version__ = "0.1.0"
