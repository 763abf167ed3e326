"""Is the answer right? Compared with the fp64 reference, on fresh random inputs, before anything is timed."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from perflab.contract import Shape, Stage, Tolerance
from perflab.measure import inputs as drawing
from perflab.record import Accuracy, OutputError

#: Bytes of fp64 inputs given to the reference at a time.
CHUNK_BYTES = 256 * 2**20
#: What an output may be.
PLAIN_TENSORS = (torch.Tensor, torch.nn.Parameter)


class Wrong(Exception):
    """The implementation's answer is refused: a stable code and a sentence."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


class BrokenReferenceError(RuntimeError):
    """The reference's answer cannot be compared with: another shape, or not finite."""


@dataclass(frozen=True)
class Subject:
    """What is checked: the contract, the reference, the function, and the case's dtype and device.

    poison  fill what torch allocates with NaN. Not for compiled functions, which would be compiled anew under it, so
            that another program would be checked than is timed; theirs write their buffers whole by construction
    repeat  call twice and compare the bits. Not for interpreters, which run one program after the other anyway
    """

    stage: Stage
    reference: Callable[..., Any]
    function: Callable[..., Any]
    dtype: str
    device: str
    poison: bool = True
    repeat: bool = True


@dataclass
class _Sums:
    """Running sums of one output's error over chunks and draws."""

    max_abs: float = 0.0
    error_square: float = 0.0
    reference_square: float = 0.0
    elementwise: float = 0.0

    def add(self, output: torch.Tensor, reference: torch.Tensor) -> None:
        if output.shape != reference.shape or not torch.isfinite(reference).all():
            raise BrokenReferenceError(f"the reference gives {list(reference.shape)}, or values that are not finite")
        if not output.numel():
            return
        error = (output.double() - reference).abs_()
        scale = reference.square().mean().sqrt()
        self.max_abs = max(self.max_abs, error.max().item())
        self.elementwise = max(self.elementwise, (error / (reference.abs() + scale).clamp_min(1e-300)).max().item())
        self.error_square += error.square_().sum().item()
        self.reference_square += reference.square().sum().item()

    def result(self, tolerance: Tolerance) -> OutputError:
        norm = self.reference_square**0.5
        return OutputError(
            max_abs_error=self.max_abs,
            relative_l2_error=self.error_square**0.5 / norm if norm else self.error_square**0.5,
            elementwise_error=self.elementwise,
            tolerance_l2=tolerance.relative_l2,
            tolerance_elementwise=tolerance.elementwise,
        )


def check(subject: Subject, shape: Shape, seeds: list[int]) -> Accuracy:
    """Check the function on one shape, once per seed.

    Fails: Wrong with one of the codes wrong_output, wrong_shape, wrong_dtype, not_finite, inputs_changed, wrong_value.
    """
    sums = new_sums(subject.stage)
    deterministic = True if subject.repeat else None
    for seed in seeds:
        given = drawing.draw(subject.stage, shape, subject.dtype, subject.device, seed)
        with unwritten_memory_is_nan() if subject.poison else contextlib.nullcontext():
            outputs = compare(subject, given, shape, sums)
        if subject.repeat and seed == seeds[0]:
            # Under the settings that timing has: torch may choose other, unordered algorithms there.
            first, second = (compare(subject, given, shape, sums) for _ in range(2))
            deterministic = all(torch.equal(first[name], second[name]) for name in outputs)
    return _verdict(subject, shape, sums, len(seeds), deterministic)


def check_in_place(subject: Subject, given: Mapping[str, torch.Tensor], shape: Shape, seed: int) -> Accuracy:
    """Check once more, after timing: in the tensors that were timed, with new values, and memory as it comes.

    A function that remembers answers or changes its ways after some calls does not pass this. One that overwrites its
    answer some time after returning it still may.

    Fails: as `check`.
    """
    sums = new_sums(subject.stage)
    for name, fresh in drawing.draw(subject.stage, shape, subject.dtype, subject.device, seed).items():
        given[name].copy_(fresh)
    compare(subject, given, shape, sums)
    return _verdict(subject, shape, sums, 1, None)


def new_sums(stage: Stage) -> dict[str, _Sums]:
    """Nothing compared yet."""
    return {name: _Sums() for name in stage.outputs}


def compare(
    subject: Subject, given: Mapping[str, torch.Tensor], shape: Shape, sums: dict[str, _Sums]
) -> dict[str, torch.Tensor]:
    """Call the function, see that it left its inputs alone, and add its errors to `sums`. Gives its outputs."""
    kept = {name: tensor.clone() for name, tensor in given.items()}
    outputs = run(subject, given, shape)
    for name, tensor in given.items():
        if not torch.equal(tensor, kept[name]):
            raise Wrong("inputs_changed", f"the input {name} was changed")
    _compare(subject, kept, outputs, sums)
    return outputs


def run(subject: Subject, given: Mapping[str, torch.Tensor], shape: Shape) -> dict[str, torch.Tensor]:
    """Call the function and name its outputs.

    Fails: Wrong when their number, shape or dtype is not the contract's, or a value is not finite.
    """
    result = subject.function(*given.values(), **subject.stage.params)
    if subject.device == "cuda":
        torch.cuda.synchronize()
    tensors = result if isinstance(result, tuple | list) else (result,)
    specs = subject.stage.outputs
    # Subclasses may put off their work until somebody looks.
    if len(tensors) != len(specs) or not all(type(tensor) in PLAIN_TENSORS for tensor in tensors):
        kinds = ", ".join(type(tensor).__name__ for tensor in tensors)
        raise Wrong("wrong_output", f"expected the tensors {', '.join(specs)}, got: {kinds}")
    outputs = dict(zip(specs, tensors, strict=True))
    for name, tensor in outputs.items():
        sizes, dtype = specs[name].sizes(shape), drawing.TORCH_DTYPES[specs[name].item_dtype(subject.dtype)]
        if tuple(tensor.shape) != sizes:
            raise Wrong("wrong_shape", f"{name} has shape {list(tensor.shape)}, expected {list(sizes)}")
        if tensor.device.type != subject.device or tensor.layout != torch.strided:
            raise Wrong("wrong_output", f"{name} is a {tensor.layout} tensor on {tensor.device}")
        if tensor.dtype != dtype:
            raise Wrong("wrong_dtype", f"{name} is {tensor.dtype}, expected {dtype}")
        bad = tensor.numel() - int(torch.isfinite(tensor).sum())
        if bad:
            text = f"{bad} of {tensor.numel()} elements of {name} are NaN or infinite (never written, or computed so)"
            raise Wrong("not_finite", text)
    return outputs


@contextlib.contextmanager
def unwritten_memory_is_nan() -> Iterator[None]:
    """Fill memory that torch allocates uninitialised with NaN."""
    before = torch.get_deterministic_debug_mode(), torch.utils.deterministic.fill_uninitialized_memory
    torch.set_deterministic_debug_mode("warn")
    torch.utils.deterministic.fill_uninitialized_memory = True
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(before[0])
        torch.utils.deterministic.fill_uninitialized_memory = before[1]


def _compare(
    subject: Subject, given: Mapping[str, torch.Tensor], outputs: Mapping[str, torch.Tensor], sums: dict[str, _Sums]
) -> None:
    """Add this draw's errors to `sums`, some tokens at a time: the first dim counts independent tokens."""
    token_dim = subject.stage.dims[0]
    per_token = {name for name, spec in subject.stage.inputs.items() if spec.shape.split()[0] == token_dim}
    tokens = next(iter(outputs.values())).shape[0]
    whole = sum(given[name].numel() for name in per_token) * 8
    step = max(1, tokens * CHUNK_BYTES // max(whole, 1)) if tokens else 1
    for start in range(0, max(tokens, 1), step):
        part = slice(start, start + step)
        chunk = [(tensor[part] if name in per_token else tensor).double() for name, tensor in given.items()]
        result = subject.reference(*chunk, **subject.stage.params)
        references = result if isinstance(result, tuple | list) else (result,)
        for name, reference in zip(outputs, references, strict=True):
            sums[name].add(outputs[name][part], reference)


def _verdict(
    subject: Subject, shape: Shape, sums: Mapping[str, _Sums], draws: int, deterministic: bool | None
) -> Accuracy:
    errors = {name: sums[name].result(subject.stage.tolerance(subject.dtype, name)) for name in subject.stage.outputs}
    worst_name, worst = max(errors.items(), key=lambda item: _excess(item[1]))
    # Not `> 1`: an error that is not a number must not pass.
    if not _excess(worst) <= 1:
        raise Wrong(
            "wrong_value",
            f"{worst_name}: relative l2 error {worst.relative_l2_error:.2g} (allowed {worst.tolerance_l2:.2g}), "
            f"worst element {worst.elementwise_error:.2g} (allowed {worst.tolerance_elementwise:.2g})",
        )
    return Accuracy(
        max_abs_error=worst.max_abs_error,
        relative_l2_error=worst.relative_l2_error,
        tolerance=worst.tolerance_l2,
        outputs=errors,
        shape=dict(shape),
        draws=draws,
        deterministic=deterministic,
    )


def _excess(error: OutputError) -> float:
    """The error in units of its bound; infinite if it is not a number."""
    excess = (error.relative_l2_error / error.tolerance_l2, error.elementwise_error / error.tolerance_elementwise)
    return math.inf if any(math.isnan(value) for value in excess) else max(excess)
