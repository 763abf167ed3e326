"""Is a training step right? Loss, every gradient and the update, each against the fp64 reference."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from perflab.catalogue import load_module
from perflab.contract import Tolerance
from perflab.measure.check import Wrong, unwritten_memory_is_nan
from perflab.measure.comparison import BrokenReferenceError, Sums
from perflab.measure.task import Task, execution
from perflab.record import Accuracy, OutputError
from perflab.training import TrainingStage

if TYPE_CHECKING:
    from perflab.measure.training import Training

Named = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class StepCheck:
    """The check of one case.

    make        a model of a shape, from a seed
    convention  what tells the reference which model it is
    """

    task: Task
    stage: TrainingStage
    make: Callable[[Mapping[str, int], int], Training]
    convention: Mapping[str, str]

    def check(self, seeds: list[int]) -> dict[str, Any]:
        """Accuracy of loss, gradients and update, from one start per seed. Fails: Wrong."""
        if execution(self.task.toolkit, self.task.device) == "native":
            # A model that does not fit says so before the reference of a smaller one takes memory too.
            self.make(self.task.shape, 0)
            give_back(self.task.device)
        errors: dict[str, OutputError] = {}
        deterministic = True
        for seed in seeds:
            same, found = self._check_start(seed)
            deterministic &= same
            for name, error in found.items():
                errors[name] = max(errors.get(name, error), error, key=_excess)
        kinds = {kind: [name for name in errors if name.startswith(kind)] for kind in ("loss", "grad_", "update_")}
        worst = {
            name: errors[name] for names in kinds.values() for name in [max(names, key=lambda n: _excess(errors[n]))]
        }
        most = max(worst.values(), key=_excess)
        if _excess(most) > 1:
            name = max(worst, key=lambda n: _excess(worst[n]))
            raise Wrong(
                "wrong_output",
                f"{name}: relative l2 error {most.relative_l2_error:.2e}, allowed {most.tolerance_l2:.2e}",
            )
        native = execution(self.task.toolkit, self.task.device) == "native"
        return Accuracy(
            max_abs_error=max(error.max_abs_error for error in worst.values()),
            relative_l2_error=most.relative_l2_error, tolerance=most.tolerance_l2, outputs=worst,
            shape=self.task.check_shape, draws=len(seeds), deterministic=deterministic if native else None,
        ).model_dump()  # fmt: skip

    def _check_start(self, seed: int) -> tuple[bool, dict[str, OutputError]]:
        """One start: whether two passes have the same bits, and every error."""
        training, reference = (
            self.make(self.task.check_shape, seed),
            load_module(self.task.stage_folder / "reference.py"),
        )
        before, tokens = _double(training.state()), training.batch(seed)
        # Memory that nobody has written is NaN, but in compiled code, which would be compiled anew.
        with contextlib.nullcontext() if self.task.toolkit == "compiled" else unwritten_memory_is_nan():
            found = training.gradients(tokens)
        again = training.gradients(tokens) if execution(self.task.toolkit, self.task.device) == "native" else found
        wanted = self._wanted(reference, before, tokens, training.choices())
        errors = self._compare(
            {_as_gradient(name): t for name, t in found.items()}, {_as_gradient(n): t for n, t in wanted.items()}
        )
        # An update by AdamW is nearly the gradient's sign: it is held to the gradients that the model itself has found.
        training.step(tokens)
        gradients = {name: one for name, one in _double(found).items() if name != "loss"}
        after = reference.update(before, gradients, {name: one.cpu() for name, one in training.choices().items()})
        state = training.state()
        updates = {f"update_{name}": state[name].double().cpu() - before[name] for name in after}
        errors |= self._compare(updates, {f"update_{name}": after[name] - before[name] for name in after})
        return all(torch.equal(found[name], again[name]) for name in found), errors

    def _wanted(self, reference: Any, before: Named, tokens: torch.Tensor, choices: Named) -> dict[str, torch.Tensor]:
        """What the reference gives. Fails: Wrong for a choice that it refuses."""
        slack = self.stage.slack.get(self.task.dtype, 0.0)
        choices = {name: one.cpu() for name, one in choices.items()}
        try:
            return dict(
                reference.step(
                    before, tokens.cpu(), self.task.check_shape, **self.convention, choices=choices, slack=slack
                )
            )
        except ValueError as error:
            raise Wrong("wrong_value", str(error)) from error

    def _compare(self, found: Named, wanted: Named) -> dict[str, OutputError]:
        """The error of every result. Fails: Wrong for one that is missing or not finite."""
        if strange := sorted(found.keys() ^ wanted.keys()):
            raise Wrong(
                "wrong_output", f"{strange[0]}: only the {'model' if strange[0] in found else 'reference'} has it"
            )
        errors = {}
        for name, reference in wanted.items():
            result = found[name].detach().cpu()
            if not torch.isfinite(result).all():
                raise Wrong("not_finite", f"{name}: not finite")
            tolerance = self._tolerance(name)
            sums = Sums(absolute=tolerance.absolute)
            try:
                sums.add(result, reference)
            except BrokenReferenceError as error:
                raise Wrong("wrong_shape", f"{name}: {list(result.shape)}; {error}") from error
            errors[name] = sums.result(tolerance)
        return errors

    def _tolerance(self, name: str) -> Tolerance:
        kind, _, _ = name.partition("_")
        return self.stage.tolerance(self.task.dtype, kind)


def give_back(device: str) -> None:
    """Free what no model holds any longer: a GPU has room for one."""
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()


def _as_gradient(name: str) -> str:
    return name if name == "loss" else f"grad_{name}"


def _double(tensors: Named) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().double().cpu() for name, tensor in tensors.items()}


def _excess(error: OutputError) -> float:
    """How much of what is allowed the error takes."""
    return max(error.relative_l2_error / error.tolerance_l2, error.elementwise_error / error.tolerance_elementwise)
