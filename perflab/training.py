"""Stages whose implementations are whole models in training: what is measured of them is one optimiser step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from perflab.contract import CompulsoryBytes, Shape, Stage, Tensor


@dataclass(frozen=True)
class TrainingStage(Stage):
    """The contract of an optimiser step. Every implementation may be another model: they share sizes, not results.

    An implementation's function takes (shape, dtype, device, seed) and gives a model in training, as
    `perflab.measure.training.Training` describes it. What tells its reference which model it is stands in the file as
    CONVENTION, a dictionary written out; the reference gets it as keywords.

    tolerances  per dtype: of `loss`, of every parameter's gradient (`grad_*`) and of its `update`, by the largest error
    checked_at  most that a check takes of a dim: the fp64 reference must hold the model
    slack       per dtype: how much lower than one left out a choice may rank, which rounding then explains
    sequence    the dim that counts a sequence's tokens, which an interpreter is given few of
    """

    inputs: Mapping[str, Tensor] = field(default_factory=dict, kw_only=True)
    outputs: Mapping[str, Tensor] = field(default_factory=dict, kw_only=True)
    checked_at: Mapping[str, int] = field(default_factory=dict, kw_only=True)
    slack: Mapping[str, float] = field(default_factory=dict, kw_only=True)
    sequence: str = field(default="S", kw_only=True)

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Those with tolerances."""
        return tuple(self.tolerances)

    @property
    def passes(self) -> tuple[str, ...]:
        """A step is measured whole."""
        return ("step",)

    def refusal(self, shape: Shape, pass_: str) -> tuple[str, str] | None:  # noqa: ARG002
        """Why a pass makes no sense here: a code and a sentence, without the stage's name."""
        if empty := [dim for dim, size in shape.items() if size < 1]:
            return "empty_shape", f"needs at least 1 of {', '.join(empty)}"
        return None

    def check_shape(self, shape: Shape, tokens: int | None) -> dict[str, int]:
        """The shape that answers are checked at; `tokens` is the most that an interpreter or emulator is given."""
        most = dict(self.checked_at)
        if tokens is not None:
            most[self.sequence] = min(tokens, most.get(self.sequence, tokens))
        return {dim: min(size, most.get(dim, size)) for dim, size in shape.items()}

    def compulsory(self, shape: Shape, dtype: str, pass_: str = "step") -> CompulsoryBytes | None:  # noqa: ARG002
        """None: what a step must move depends on what is kept where, and on the model."""
        return None


@dataclass(frozen=True)
class PipelineStage(TrainingStage):
    """The contract of a step that several processes share as a pipeline.

    An implementation's function takes (shape, dtype, device, seed, steps), runs that many steps in processes of its
    own, and gives what `perflab.measure.pipeline.PipelineRun` describes. The reference, called alike and with
    CONVENTION, gives the losses of one process that takes the same steps.

    tolerances  per dtype: of `losses`
    steps       of the run whose losses are checked: later ones depend on the updates before them
    """

    steps: int = field(default=4, kw_only=True)
