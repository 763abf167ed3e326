"""What a stage promises: its dimensions, inputs, outputs, tolerances and the bytes it cannot avoid.

Pure data: nothing here imports a tensor library, so a plan can be made on a machine without one.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Mapping
from dataclasses import dataclass, field

Shape = Mapping[str, int]

#: Bytes of one element. `tf32` is stored as fp32 whose values need no more than tf32's ten fraction bits.
ITEM_BYTES = {"bf16": 2, "fp16": 2, "fp32": 4, "tf32": 4, "fp64": 8}
#: The dtypes a case can have: that of the stage's streams.
STREAM_DTYPES = ("bf16", "fp16", "fp32")

_OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul}


class Unsupported(ValueError):
    """Raised by an implementation for a shape or dtype that it does not handle: the case is skipped, not failed."""

    code = "unsupported_shape"


@dataclass(frozen=True)
class Normal:
    """Independent normal values.

    std  a number, an expression of the dims, or several numbers, which rows of the first dimension take in turn
    """

    std: float | str | tuple[float, ...] = 1.0
    mean: float = 0.0


@dataclass(frozen=True)
class Uniform:
    """Independent values, uniform in [low, high)."""

    low: float = 0.0
    high: float = 1.0


@dataclass(frozen=True)
class Tensor:
    """One input or output.

    shape         dimensions separated by blanks; each a product or sum of the stage's dims: `"T n*n+2*n"`
    dtype         `stream` (the dtype of the case) or a fixed one of ITEM_BYTES
    values        how an input is drawn, and an output's incoming gradient
    differentiable  whether the backward pass owes (inputs) or receives (outputs) a gradient
    """

    shape: str
    dtype: str = "stream"
    values: Normal | Uniform = field(default_factory=Normal)
    differentiable: bool = True

    def sizes(self, shape: Shape) -> tuple[int, ...]:
        """Concrete sizes for `shape`. Fails: KeyError for a dim that `shape` lacks."""
        return tuple(evaluate(part, shape) for part in self.shape.split())

    def elements(self, shape: Shape) -> int:
        """Number of elements for `shape`."""
        return math.prod(self.sizes(shape))

    def item_dtype(self, dtype: str) -> str:
        """The concrete dtype in a case of dtype `dtype`."""
        return dtype if self.dtype == "stream" else self.dtype

    def nbytes(self, shape: Shape, dtype: str) -> int:
        """Bytes of the whole tensor in a case of dtype `dtype`."""
        return self.elements(shape) * ITEM_BYTES[self.item_dtype(dtype)]


@dataclass(frozen=True)
class Tolerance:
    """How far an output may lie from the fp64 reference.

    relative_l2   bound on ||out - ref||_2 / ||ref||_2
    elementwise   bound on |out - ref| / (|ref| + scale) at every element, where scale is the reference's root mean
                  square: an absolute allowance for elements near zero, a relative one for large ones
    absolute      errors up to this count as none, and larger ones less by it: what rounding leaves of an output that
                  is a difference of rounded numbers, and may be all of it
    """

    relative_l2: float
    elementwise: float
    absolute: float = 0.0

    def __post_init__(self) -> None:
        for bound in (self.relative_l2, self.elementwise):
            if not 0 < bound < math.inf:
                raise ValueError(f"a tolerance is a finite number above 0, not {bound}")
        if not 0 <= self.absolute < math.inf:
            raise ValueError(f"an absolute allowance is a finite number of at least 0, not {self.absolute}")


@dataclass(frozen=True)
class CompulsoryBytes:
    """The fewest bytes a pass can move: what it must read, what it must write."""

    read_bytes: int
    write_bytes: int

    @property
    def total_bytes(self) -> int:
        """Both directions together, in bytes."""
        return self.read_bytes + self.write_bytes


@dataclass(frozen=True)
class Stage:
    """The contract that every implementation of a stage is checked against.

    dims           names of the dimensions; the first one (`T`) counts independent tokens, so a check may use fewer
    inputs         in the order of the implementation's arguments
    outputs        in the order of the implementation's results
    params         keyword arguments with their values; one that is text is an expression of the dims: `"L_r"`
    tolerances     per case dtype, per output, and per gradient (`grad_x`); what is missing here takes the entry `*`
    supports       allowed values of a dim where not every positive number is meant
    backward_reads inputs and outputs that the backward pass must read besides the incoming gradients
    observed       outputs whose mean over all elements is a result by itself, and is recorded
    backward_moves whether backward moves anything; not if every gradient is an incoming one, handed on
    baseline       stem of the implementation that the others are compared with
    presets        shapes that a suite can name
    source         where the definition stands
    """

    dims: tuple[str, ...]
    inputs: Mapping[str, Tensor]
    outputs: Mapping[str, Tensor]
    tolerances: Mapping[str, Mapping[str, Tolerance]]
    source: str
    params: Mapping[str, float | int | str] = field(default_factory=dict)
    supports: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    backward_reads: tuple[str, ...] = ()
    backward_moves: bool = True
    observed: tuple[str, ...] = ()
    baseline: str = "eager"
    presets: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.dims, tuple) or not self.dims:
            raise ValueError(f"dims: expected names such as ('T', 'n', 'C'), not {self.dims!r}")
        ones = dict.fromkeys(self.dims, 1)
        for name, tensor in (*self.inputs.items(), *self.outputs.items()):
            try:
                tensor.sizes(ones)
            except KeyError as error:
                raise ValueError(f"{name}: {tensor.shape!r} names {error}, which is none of the dims") from error
        tensors = {**self.inputs, **self.outputs}
        scales = {name: getattr(tensor.values, "std", None) for name, tensor in tensors.items()}
        for name, value in (*self.params.items(), *scales.items()):
            if isinstance(value, str):
                try:
                    evaluate(value, ones)
                except KeyError as error:
                    raise ValueError(f"{name}: {value!r} names {error}, which is none of the dims") from error
        if unknown := set(self.observed) - set(self.outputs):
            raise ValueError(f"observed: {', '.join(sorted(unknown))} is no output")
        if clash := set(self.params) & set(self.inputs):
            raise ValueError(f"{', '.join(sorted(clash))}: both an input and a parameter")
        for dim, allowed in self.supports.items():
            if dim not in self.dims or not isinstance(allowed, tuple):
                raise ValueError(f"supports: expected a tuple of sizes for one of the dims, not {dim}={allowed!r}")

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Case dtypes that make sense: all when the stage has streams, else fp32 alone."""
        tensors = (*self.inputs.values(), *self.outputs.values())
        return STREAM_DTYPES if any(t.dtype == "stream" for t in tensors) else ("fp32",)

    @property
    def passes(self) -> tuple[str, ...]:
        """What can be measured of it, the usual one first."""
        return ("forward", "backward", "forward_backward")

    @property
    def differentiable(self) -> bool:
        """Whether some input has a gradient."""
        return any(tensor.differentiable for tensor in self.inputs.values())

    def refusal(self, shape: Shape, pass_: str) -> tuple[str, str] | None:
        """Why a pass makes no sense here, or cannot be checked: a code and a sentence, without the stage's name."""
        if pass_ != "forward" and not self.differentiable:
            return "no_backward", "has no input to differentiate"
        if pass_ != "forward" and (unstated := self.unstated_gradients()):
            return "no_tolerance", f"states no tolerance for {', '.join(unstated)}"
        if not any(output.elements(shape) for output in self.outputs.values()):
            return "empty_shape", "has no output with an element: there is nothing to check"
        for dim, allowed in self.supports.items():
            if shape.get(dim) not in allowed:
                return "unsupported_shape", f"is defined for {dim} in {allowed}, not {shape.get(dim)}"
        return None

    def check_shape(self, shape: Shape, tokens: int | None) -> dict[str, int]:
        """The shape that answers are checked at; `tokens` is the most that an interpreter or emulator is given."""
        most = {} if tokens is None else {self.dims[0]: tokens}
        return {dim: min(size, most.get(dim, size)) for dim, size in shape.items()}

    def unstated_gradients(self) -> list[str]:
        """Gradients for which some dtype states no tolerance: a backward pass cannot be checked then."""
        names = [f"grad_{name}" for name, tensor in self.inputs.items() if tensor.differentiable]
        return [n for n in names if any(n not in of and "*" not in of for of in self.tolerances.values())]

    def keywords(self, shape: Shape) -> dict[str, float | int]:
        """The params for `shape`."""
        return {name: evaluate(v, shape) if isinstance(v, str) else v for name, v in self.params.items()}

    def tolerance(self, dtype: str, output: str) -> Tolerance:
        """The bound for one output in a case of dtype `dtype`."""
        of_dtype = self.tolerances[dtype]
        return of_dtype.get(output, of_dtype["*"]) if "*" in of_dtype else of_dtype[output]

    def compulsory(self, shape: Shape, dtype: str, pass_: str = "forward") -> CompulsoryBytes | None:
        """Each declared input read once and each output written once; backward from the declared needs.

        None where a stage has no fewest bytes.
        """
        forward = CompulsoryBytes(
            sum(t.nbytes(shape, dtype) for t in self.inputs.values()),
            sum(t.nbytes(shape, dtype) for t in self.outputs.values()),
        )
        if pass_ == "forward":
            return forward
        tensors = {**self.inputs, **self.outputs}
        needed = [tensors[name] for name in self.backward_reads]
        cotangents = [t for t in self.outputs.values() if t.differentiable]
        gradients = [t for t in self.inputs.values() if t.differentiable]
        backward = CompulsoryBytes(0, 0)
        if self.backward_moves:
            backward = CompulsoryBytes(
                sum(t.nbytes(shape, dtype) for t in (*needed, *cotangents)),
                sum(t.nbytes(shape, dtype) for t in gradients),
            )
        if pass_ == "backward":
            return backward
        return CompulsoryBytes(forward.read_bytes + backward.read_bytes, forward.write_bytes + backward.write_bytes)


def evaluate(expression: str, shape: Shape) -> int:
    """Value of an expression of dims such as `n*n+2*n`: names, whole numbers, +, - and *."""

    def value(node: ast.expr) -> int:
        match node:
            case ast.Constant(value=int(number)):
                return number
            case ast.Name(id=name):
                return shape[name]
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
                return int(_OPERATORS[type(op)](value(left), value(right)))
            case _:
                raise ValueError(f"dimension {expression!r}: only names, whole numbers, +, - and * are allowed")

    return value(ast.parse(expression, mode="eval").body)
