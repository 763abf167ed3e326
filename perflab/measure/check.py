"""Is the answer right? Compared with the fp64 reference, on fresh random inputs, before anything is timed."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from perflab.contract import Shape, Stage, Tensor
from perflab.measure import inputs as drawing
from perflab.measure import passes
from perflab.measure.comparison import GRADIENT, Reference, Sums, excess, told
from perflab.measure.passes import Work
from perflab.record import Accuracy

#: What an output may be.
PLAIN_TENSORS = (torch.Tensor, torch.nn.Parameter)


class Wrong(Exception):
    """The implementation's answer is refused: a stable code and a sentence."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


@dataclass(frozen=True)
class Subject:
    """What is checked: the contract, the reference, the function, the case's dtype, device and pass.

    recompiles  the function is compiled anew under other settings of torch, and for other inputs that require a
                gradient, so another program would be checked than is timed: it is checked as it is timed, only
    repeat      call twice and compare the bits. Not for interpreters, which run one program after the other anyway
    """

    stage: Stage
    reference: Callable[..., Any]
    function: Callable[..., Any]
    dtype: str
    device: str
    pass_: str = "forward"
    recompiles: bool = False
    repeat: bool = True

    def work(self, shape: Shape, seed: int) -> Work:
        """Fresh inputs, and cotangents where the pass has a backward."""
        given, cotangents = passes.draw(self.stage, shape, (self.dtype, self.device), self.pass_, seed)
        return Work(self.stage, self.function, self.pass_, shape, given, cotangents)


def check(subject: Subject, shape: Shape, seeds: list[int]) -> Accuracy:
    """Check the function on one shape, once per seed.

    Where the pass has a backward, outputs and gradients are compared, and every draw after the first freezes some of
    the inputs.

    Fails: Wrong with one of the codes wrong_output, wrong_shape, wrong_dtype, not_finite, inputs_changed, wrong_value;
    passes.NoBackward.
    """
    sums = new_sums(subject)
    deterministic = True if subject.repeat else None
    observed: dict[str, float] = {}
    for seed in seeds:
        work = subject.work(shape, seed)
        if seed != seeds[0] and not subject.recompiles:
            _freeze_some(work, seed)
        with contextlib.nullcontext() if subject.recompiles else unwritten_memory_is_nan():
            results = compare(subject, work, shape, sums)
        observed = observed or {name: results[name].double().mean().item() for name in subject.stage.observed}
        if subject.repeat and seed == seeds[0]:
            # Under the settings that timing has: torch may choose other, unordered algorithms there.
            first, second = (compare(subject, work, shape, sums) for _ in range(2))
            deterministic = all(torch.equal(first[name], second[name]) for name in first)
    accuracy = _verdict(subject, shape, sums)
    return accuracy.model_copy(update={"draws": len(seeds), "deterministic": deterministic, "observed": observed})


def check_in_place(subject: Subject, work: Work, shape: Shape, seed: int) -> Accuracy:
    """Check once more, after timing: in the tensors that were timed, with new values, and memory as it comes.

    A function that remembers answers or changes its ways after some calls does not pass this, nor does one whose graph,
    walked again and again in a backward pass, remembers its gradients. One that overwrites its answer some time after
    returning it still may.

    Fails: as `check`.
    """
    fresh = subject.work(shape, seed)
    if work.pass_ == "backward":
        _check_graph(subject, work, fresh, shape)
    sums = new_sums(subject)
    with torch.no_grad():
        for name, tensor in fresh.given.items():
            work.given[name].copy_(tensor)
        for name, tensor in fresh.cotangents.items():
            work.cotangents[name].copy_(tensor)
    compare(subject, work, shape, sums)
    return _verdict(subject, shape, sums)


def _check_graph(subject: Subject, work: Work, fresh: Work, shape: Shape) -> None:
    """Walk the graph that was timed with other incoming gradients, on the inputs it was made of. Fails: as `check`."""
    for name, tensor in fresh.cotangents.items():
        # The graph's own leaf values stay; other numbers than those that it was walked with arrive.
        work.cotangents[name].copy_(tensor)
    found = work.call()
    _synchronise(subject)
    results = {GRADIENT + n: torch.zeros_like(work.given[n]) if g is None else g for n, g in found.items()}
    sums = {name: one for name, one in new_sums(subject).items() if name in results}
    for name, tensor in results.items():
        _check_kind(subject, name, tensor, shape)
    given = {name: tensor.detach() for name, tensor in work.given.items()}
    Reference(subject.stage, subject.reference, shape, given, work.cotangents).compare(results, sums)
    _verdict(subject, shape, sums)


def new_sums(subject: Subject) -> dict[str, Sums]:
    """Nothing compared yet."""
    return {name: Sums(subject.stage.tolerance(subject.dtype, name).absolute) for name in _specs(subject)}


def compare(subject: Subject, work: Work, shape: Shape, sums: Mapping[str, Sums]) -> dict[str, torch.Tensor]:
    """Call the function, see that it left its inputs alone, and add its errors to `sums`. Gives its results by name."""
    tensors = {**work.given, **{f"the gradient of {name}": t for name, t in work.cotangents.items()}}
    kept = {name: tensor.detach().clone() for name, tensor in tensors.items()}
    results = run(subject, work, shape)
    for name, tensor in tensors.items():
        if not torch.equal(tensor, kept[name]):
            raise Wrong("inputs_changed", f"the input {name} was changed")
    given = {name: kept[name] for name in work.given}
    cotangents = {name: kept[f"the gradient of {name}"] for name in work.cotangents}
    Reference(subject.stage, subject.reference, shape, given, cotangents).compare(results, sums)
    return results


def run(subject: Subject, work: Work, shape: Shape) -> dict[str, torch.Tensor]:
    """Call the function and name its outputs and, where the pass has a backward, its gradients.

    Fails: Wrong when their number, shape or dtype is not the contract's, or a value is not finite.
    """
    with torch.set_grad_enabled(passes.has_backward(subject.pass_)):
        result = work.forward()
    _synchronise(subject)
    tensors = result if isinstance(result, tuple | list) else (result,)
    specs = subject.stage.outputs
    # Subclasses may put off their work until somebody looks.
    if len(tensors) != len(specs) or not all(type(tensor) in PLAIN_TENSORS for tensor in tensors):
        kinds = ", ".join(type(tensor).__name__ for tensor in tensors)
        raise Wrong("wrong_output", f"expected the tensors {', '.join(specs)}, got: {kinds}")
    results = dict(zip(specs, tensors, strict=True))
    if passes.has_backward(subject.pass_):
        found = work.gradients(tensors)
        _synchronise(subject)
        # No gradient says that the outputs do not depend on the input.
        results |= {GRADIENT + n: torch.zeros_like(work.given[n]) if g is None else g for n, g in found.items()}
    for name, tensor in results.items():
        _check_kind(subject, name, tensor, shape)
    return {name: tensor.detach() for name, tensor in results.items()}


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


def _specs(subject: Subject) -> dict[str, Tensor]:
    """What is compared, by name."""
    stage, gradients = subject.stage, passes.has_backward(subject.pass_)
    differentiable = {GRADIENT + name: spec for name, spec in stage.inputs.items() if spec.differentiable}
    return {**stage.outputs, **(differentiable if gradients else {})}


def _freeze_some(work: Work, seed: int) -> None:
    """Let some, never all, of the inputs that require a gradient require none."""
    live = [name for name, tensor in work.given.items() if tensor.requires_grad]
    chooser = random.Random(seed)
    for name in chooser.sample(live, chooser.randrange(1, len(live))) if len(live) > 1 else ():
        work.given[name].requires_grad_(False)


def _synchronise(subject: Subject) -> None:
    if subject.device == "cuda":
        torch.cuda.synchronize()


def _check_kind(subject: Subject, name: str, tensor: torch.Tensor, shape: Shape) -> None:
    """Fails: Wrong when shape, dtype, layout or device is not the contract's, or a value is not finite."""
    spec = _specs(subject)[name]
    sizes, dtype = spec.sizes(shape), drawing.TORCH_DTYPES[spec.item_dtype(subject.dtype)]
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


def _verdict(subject: Subject, shape: Shape, sums: Mapping[str, Sums]) -> Accuracy:
    errors = {name: one.result(subject.stage.tolerance(subject.dtype, name)) for name, one in sums.items()}
    worst_name, worst = max(errors.items(), key=lambda item: excess(item[1]))
    if excess(worst) > 1:
        raise Wrong("wrong_value", told(worst_name, worst))
    return Accuracy(
        max_abs_error=worst.max_abs_error,
        relative_l2_error=worst.relative_l2_error,
        tolerance=worst.tolerance_l2,
        outputs=errors,
        shape=dict(shape),
        draws=1,
        deterministic=None,
    )
