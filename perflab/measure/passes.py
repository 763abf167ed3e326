"""What a pass does with an implementation: forward, backward from a graph made before, or both in turn."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from perflab.contract import Shape, Stage
from perflab.measure import inputs as drawing


class NoBackward(RuntimeError):
    """The implementation's outputs carry no gradient: a skip with this reason, not a failure."""

    code = "no_backward"


@dataclass
class Work:
    """One implementation, its tensors, and a pass over them.

    shape       the sizes of the stage's dims
    given       inputs by name; where the pass has a backward, those that it differentiates require a gradient
    cotangents  incoming gradients by output; empty in a forward pass
    """

    stage: Stage
    function: Callable[..., Any]
    pass_: str
    shape: Shape
    given: dict[str, torch.Tensor]
    cotangents: dict[str, torch.Tensor] = field(default_factory=dict)
    _outputs: Any = None

    def prepare(self) -> None:
        """What a call needs and does not measure: the graph that `backward` walks, any number of times."""
        if self.pass_ == "backward":
            self._outputs = self.forward()

    def call(self) -> Any:
        """What is measured."""
        if self.pass_ == "forward":
            with torch.no_grad():
                return self.forward()
        if self.pass_ == "backward":
            return self.gradients(self._outputs, retain_graph=True)
        return self.gradients(self.forward())

    def forward(self) -> Any:
        """The implementation's result as it gives it."""
        return self.function(*self.given.values(), **self.stage.keywords(self.shape))

    def gradients(self, outputs: Any, retain_graph: bool = False) -> dict[str, torch.Tensor | None]:
        """Gradients by input, of the inputs that require one; None where the outputs do not depend on the input.

        Fails: NoBackward when no output carries a gradient.
        """
        named = dict(zip(self.stage.outputs, outputs if isinstance(outputs, tuple | list) else (outputs,), strict=True))
        ends = [name for name in self.cotangents if named[name].requires_grad]
        if not ends:
            raise NoBackward("its outputs carry no gradient: it has a forward only")
        leaves = {name: tensor for name, tensor in self.given.items() if tensor.requires_grad}
        found = torch.autograd.grad(
            [named[name] for name in ends], list(leaves.values()), [self.cotangents[name] for name in ends],
            retain_graph=retain_graph, allow_unused=True,
        )  # fmt: skip
        return dict(zip(leaves, found, strict=True))


def has_backward(pass_: str) -> bool:
    """Whether the pass computes gradients."""
    return pass_ != "forward"


def draw(stage: Stage, shape: Shape, kind: tuple[str, str], pass_: str, seed: int) -> tuple[dict[str, Any], ...]:
    """Fresh inputs and, where the pass has a backward, cotangents. kind: dtype and device."""
    given = drawing.draw(stage, shape, *kind, seed=seed)
    if not has_backward(pass_):
        return given, {}
    require_gradients(stage, given)
    return given, drawing.draw_cotangents(stage, shape, *kind, seed=seed)


def require_gradients(stage: Stage, given: Mapping[str, torch.Tensor], frozen: tuple[str, ...] = ()) -> None:
    """Ask for the gradient of every differentiable input that is not frozen."""
    for name, tensor in given.items():
        tensor.requires_grad_(stage.inputs[name].differentiable and name not in frozen)
