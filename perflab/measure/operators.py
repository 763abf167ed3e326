"""A kernel's forward and backward as one differentiable operator, visible to autograd, torch.compile and the counters.

An implementation writes two functions that launch kernels, and calls the operator with tensors:

    def _forward(x: Tensor, h_pre: Tensor) -> Tensor:
        u = _outputs(x, h_pre)
        ...launch...
        return u

    def _backward(needs, du, x, h_pre):
        ...launch...
        return dx, dh_pre

    _pre = Operator(_forward, _backward, _outputs)

Both become custom operators of torch: torch.compile takes them whole, without a graph break.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, get_type_hints

import torch

#: The namespace of all operators made here.
NAMESPACE = "perflab"
#: Kernels may access this many bytes at once.
ALIGNMENT = 16
_BACKWARD_SCHEMA = "(bool[] needs, Tensor[] cotangents, Tensor[] inputs, Tensor[] kept, float[] params) -> Tensor[]"

#: What each operator runs, by its name: counters that watch single tensor operations look inside.
_bodies: dict[str, Callable[..., Any]] = {}

Tensors = tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class Operator:
    """A differentiable function of tensors, and of numbers after them.

    forward   annotated; contiguous tensors in, one tensor or a tuple of new ones out
    backward  `backward(needs, *cotangents, *inputs, *kept, *numbers)` gives a gradient, or None, per input tensor;
              `needs` says for each input whether its gradient is wanted; all tensors are contiguous
    fake      gives tensors like forward's, unwritten
    keeps     indices of forward's outputs that backward reads, besides the inputs
    hidden    how many of forward's last outputs have no gradient, and are given only by `everything`
    through   index of an input that the caller gets again, first, for its other uses: their gradient is then the first
              cotangent, and backward's kernel can add to it what would else be a pass over memory of its own
    """

    forward: Callable[..., Any]
    backward: Callable[..., Sequence[torch.Tensor | None]]
    fake: Callable[..., Any]
    keeps: tuple[int, ...] = ()
    hidden: int = 0
    through: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "_function", _autograd_function(self))

    def __call__(self, *arguments: Any) -> Any:
        """Forward's outputs without the hidden ones; a single one as such."""
        given = self.everything(*arguments)
        shown = given[: len(given) - self.hidden]
        return shown[0] if len(shown) == 1 else shown

    def everything(self, *arguments: Any) -> Tensors:
        """All of forward's outputs."""
        return self._function.apply(*arguments)  # type: ignore[attr-defined, no-any-return]


def body(operation: Any) -> Callable[..., Any] | None:
    """What an operator of this module runs; None for any other operation."""
    return _bodies.get(operation._schema.name)


def _autograd_function(operator: Operator) -> type[torch.autograd.Function]:
    forward, backward = _forward_op(operator), _backward_op(operator)
    keeps, hidden, through = operator.keeps, operator.hidden, operator.through

    class Function(torch.autograd.Function):  # type: ignore[misc]  # torch is untyped here
        @staticmethod
        def forward(ctx: Any, *arguments: Any) -> Tensors:
            outputs = forward(*arguments)
            inputs = [value for value in arguments if isinstance(value, torch.Tensor)]
            ctx.numbers = [float(value) for value in arguments[len(inputs) :]]
            ctx.inputs = len(inputs)
            # Outputs that nobody used, and the hidden ones, get no zeros made for them unless backward wants them.
            ctx.set_materialize_grads(False)
            ctx.save_for_backward(*inputs, *(outputs[index] for index in keeps))
            if hidden:
                ctx.mark_non_differentiable(*outputs[len(outputs) - hidden :])
            given = outputs if through is None else (arguments[through].view_as(arguments[through]), *outputs)
            ctx.kinds = [(one.shape, one.dtype, one.device) for one in given[: len(given) - hidden]]
            return given

        @staticmethod
        def backward(ctx: Any, *cotangents: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
            saved, needs = ctx.saved_tensors, list(ctx.needs_input_grad[: ctx.inputs])
            shown = [
                torch.zeros(shape, dtype=dtype, device=device) if one is None else one
                for one, (shape, dtype, device) in zip(cotangents, ctx.kinds, strict=False)
            ]
            found = backward(needs, shown, list(saved[: ctx.inputs]), list(saved[ctx.inputs :]), ctx.numbers)
            return (
                *(one if need else None for one, need in zip(found, needs, strict=True)),
                *[None] * len(ctx.numbers),
            )

    return Function


def _forward_op(operator: Operator) -> Callable[..., Tensors]:
    def run(*arguments: Any) -> list[torch.Tensor]:
        with torch.cuda.device_of(arguments[0]):
            return _listed(operator.forward(*dense(arguments)))

    def fake(*arguments: Any) -> list[torch.Tensor]:
        return _listed(operator.fake(*arguments))

    schema = torch.library.infer_schema(operator.forward, mutates_args=())
    arguments, _, _ = schema.rpartition("->")
    op = _register(operator.forward, run, fake, f"{arguments}-> Tensor[]")
    return lambda *arguments: tuple(op(*arguments))


def _backward_op(operator: Operator) -> Callable[..., Sequence[torch.Tensor]]:
    kinds = [kind for kind in get_type_hints(operator.forward).values() if kind in (int, float)]

    def run(needs: Any, cotangents: Any, inputs: Any, kept: Any, params: Any) -> list[torch.Tensor]:
        numbers = [kind(value) for kind, value in zip(kinds, params, strict=True)]
        with torch.cuda.device_of(inputs[0]):
            tensors = dense((*cotangents, *inputs, *kept))
            found = operator.backward(needs, *tensors, *numbers)
        # An operator gives tensors only: an empty one stands for a gradient that nobody wants.
        return [one if need else inputs[0].new_empty(0) for one, need in zip(found, needs, strict=True)]

    def fake(needs: Any, cotangents: Any, inputs: Any, kept: Any, params: Any) -> list[torch.Tensor]:
        del cotangents, kept, params
        return [one.new_empty(one.shape if need else 0) for one, need in zip(inputs, needs, strict=True)]

    return _register(operator.backward, run, fake, _BACKWARD_SCHEMA)


def _register(
    named: Callable[..., Any], run: Callable[..., Any], fake: Callable[..., Any], schema: str
) -> Callable[..., Any]:
    """A custom operator of torch, named after the module and function that it comes from."""
    # Two underscores in front would be mangled where Inductor names the operator inside a class.
    name = f"{NAMESPACE}::{named.__module__.replace('.', '_').lstrip('_')}_{named.__name__.strip('_')}"
    # The same file may be imported twice in a process, under the same name.
    while name in _bodies:
        name += "_"
    _bodies[name] = run
    op = torch.library.custom_op(name, run, mutates_args=(), schema=schema)
    op.register_fake(fake)
    return op  # type: ignore[no-any-return]


def dense(value: Any) -> Any:
    """Tensors without gaps that start where wide accesses may, in lists and tuples too; other values as they are."""
    if isinstance(value, tuple | list):
        return [dense(one) for one in value]
    if not isinstance(value, torch.Tensor):
        return value
    # A slice may start anywhere; what torch allocates starts at a multiple of ALIGNMENT.
    whole = value.contiguous()
    return whole.clone() if whole.data_ptr() % ALIGNMENT else whole


def _listed(result: Any) -> list[torch.Tensor]:
    return [result] if isinstance(result, torch.Tensor) else list(result)
