"""Errors against the fp64 reference, some tokens at a time: outputs, and gradients by autograd of the reference."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from perflab.contract import Shape, Stage, Tensor, Tolerance
from perflab.record import OutputError

#: Bytes of fp64 inputs given to the reference at a time, and when it is differentiated too, which keeps its steps.
CHUNK_BYTES, GRADIENT_CHUNK_BYTES = 256 * 2**20, 32 * 2**20
#: A gradient's name is its input's with this in front.
GRADIENT = "grad_"

Named = Mapping[str, torch.Tensor]


class BrokenReferenceError(RuntimeError):
    """The reference's answer cannot be compared with: another shape, or not finite."""


@dataclass
class Sums:
    """Running sums of one result's error over chunks and draws, beyond what its tolerance allows absolutely."""

    absolute: float = 0.0
    max_abs: float = 0.0
    error_square: float = 0.0
    reference_square: float = 0.0
    elementwise: float = 0.0

    def add(self, result: torch.Tensor, reference: torch.Tensor) -> None:
        """Add a part of the result. Fails: BrokenReferenceError."""
        if result.shape != reference.shape or not torch.isfinite(reference).all():
            raise BrokenReferenceError(f"the reference gives {list(reference.shape)}, or values that are not finite")
        if not result.numel():
            return
        error = (result.double() - reference).abs_()
        scale = reference.square().mean().sqrt()
        self.max_abs = max(self.max_abs, error.max().item())
        error.sub_(self.absolute).clamp_min_(0)
        self.elementwise = max(self.elementwise, (error / (reference.abs() + scale).clamp_min(1e-300)).max().item())
        self.error_square += error.square_().sum().item()
        self.reference_square += reference.square().sum().item()

    def result(self, tolerance: Tolerance) -> OutputError:
        """The error, with what is allowed."""
        norm = self.reference_square**0.5
        return OutputError(
            max_abs_error=self.max_abs,
            relative_l2_error=self.error_square**0.5 / norm if norm else self.error_square**0.5,
            elementwise_error=self.elementwise,
            tolerance_l2=tolerance.relative_l2,
            tolerance_elementwise=tolerance.elementwise,
        )


@dataclass(frozen=True)
class Reference:
    """The stage's mathematics in fp64, on the inputs and cotangents of one draw."""

    stage: Stage
    function: Callable[..., Any]
    shape: Shape
    given: Named
    cotangents: Named

    def compare(self, results: Named, sums: Mapping[str, Sums]) -> None:
        """Add the errors of the results there are, named as outputs or as gradients. Fails: BrokenReferenceError."""
        whole: dict[str, torch.Tensor] = {}
        wanted = [name for name in self.given if GRADIENT + name in results]
        for part in self._parts(bool(wanted)):
            outputs, gradients = self._evaluate(part, wanted)
            for name, output in outputs.items():
                if name not in results:
                    continue
                sums[name].add(self._slice(self.stage.outputs[name], results[name], part), output)
            for name, gradient in gradients.items():
                spec = self.stage.inputs[name]
                if self._token_axis(spec) is None:
                    # Every token has its share in such a gradient.
                    whole[name] = whole[name] + gradient if name in whole else gradient
                else:
                    sums[GRADIENT + name].add(self._slice(spec, results[GRADIENT + name], part), gradient)
        for name, gradient in whole.items():
            sums[GRADIENT + name].add(results[GRADIENT + name], gradient)

    def _evaluate(self, part: slice, wanted: list[str]) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
        """Outputs and gradients of some tokens, in fp64."""
        chunk = {name: self._slice(self.stage.inputs[name], t, part).double() for name, t in self.given.items()}
        leaves = [chunk[name].requires_grad_() for name in wanted]
        with torch.set_grad_enabled(bool(wanted)):
            result = self.function(*chunk.values(), **self.stage.keywords(self.shape))
        outputs = dict(zip(self.stage.outputs, result if isinstance(result, tuple | list) else (result,), strict=True))
        if not wanted:
            return outputs, {}
        ends = [name for name in self.cotangents if outputs[name].requires_grad]
        cotangents = [self._slice(self.stage.outputs[name], self.cotangents[name], part).double() for name in ends]
        found = torch.autograd.grad([outputs[name] for name in ends], leaves, cotangents, allow_unused=True)
        gradients = [torch.zeros_like(leaf) if one is None else one for one, leaf in zip(found, leaves, strict=True)]
        return {name: t.detach() for name, t in outputs.items()}, dict(zip(wanted, gradients, strict=True))

    def _parts(self, differentiated: bool) -> Iterator[slice]:
        """Slices of the tokens, so that a chunk of inputs stays small."""
        per_token = {
            name: axis for name in self.given if (axis := self._token_axis(self.stage.inputs[name])) is not None
        }
        tokens = next((self.given[name].shape[axis] for name, axis in per_token.items()), 1)
        nbytes = sum(self.given[name].numel() for name in per_token) * 8
        limit = GRADIENT_CHUNK_BYTES if differentiated else CHUNK_BYTES
        step = max(1, tokens * limit // max(nbytes, 1))
        for start in range(0, max(tokens, 1), step):
            yield slice(start, start + step)

    def _slice(self, spec: Tensor, tensor: torch.Tensor, part: slice) -> torch.Tensor:
        axis = self._token_axis(spec)
        return tensor.detach() if axis is None else tensor.detach()[(slice(None),) * axis + (part,)]

    def _token_axis(self, spec: Tensor) -> int | None:
        """Where the tensor counts tokens: the first of the stage's dims."""
        parts = spec.shape.split()
        return parts.index(self.stage.dims[0]) if self.stage.dims[0] in parts else None


def excess(error: OutputError) -> float:
    """The error in units of its bound; infinite if it is not a number, which must not pass."""
    found = (error.relative_l2_error / error.tolerance_l2, error.elementwise_error / error.tolerance_elementwise)
    return math.inf if any(math.isnan(value) for value in found) else max(found)


def told(name: str, error: OutputError) -> str:
    """Both of its errors with what is allowed."""
    return (
        f"{name}: relative l2 error {error.relative_l2_error:.2g} (allowed {error.tolerance_l2:.2g}), "
        f"worst element {error.elementwise_error:.2g} (allowed {error.tolerance_elementwise:.2g})"
    )
