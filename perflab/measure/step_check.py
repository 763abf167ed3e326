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
from perflab.measure.comparison import BrokenReferenceError, Sums, excess, told
from perflab.measure.task import Task, execution
from perflab.record import Accuracy, OutputError
from perflab.training import TrainingStage

if TYPE_CHECKING:
    from perflab.measure.training import Training

Named = Mapping[str, torch.Tensor]

#: Steps whose updates are checked from one start: one alone does not tell how moments are kept.
UPDATES = 2
#: Batches that are tried for gradients of which none vanishes: below this share of all, it is the fp64 sums' rounding.
BATCHES, VANISHING = 8, 1e-12


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
                errors[name] = max(errors.get(name, error), error, key=excess)
        worst = _worst(errors)
        most = max(worst.values(), key=excess)
        native = execution(self.task.toolkit, self.task.device) == "native"
        return Accuracy(
            max_abs_error=max(error.max_abs_error for error in worst.values()),
            relative_l2_error=most.relative_l2_error, tolerance=most.tolerance_l2, outputs=worst,
            shape=self.task.check_shape, draws=len(seeds), deterministic=deterministic if native else None,
        ).model_dump()  # fmt: skip

    def check_later(self, seed: int, steps: int) -> None:
        """Is a model still right after so many steps, each on a batch of its own? Fails: Wrong.

        The updates of all steps together are held to the reference's, and the loss and gradients that come then.
        """
        training, reference = self._start(seed)
        before, expected = self._train(training, reference, seed, steps)
        state = training.state()
        _, found, wanted = self._gradients(training, reference, seed + steps)
        _worst(self._compare_updates(before, state, expected) | self._compare_gradients(found, wanted))

    def _start(self, seed: int) -> tuple[Training, Any]:
        return self.make(self.task.check_shape, seed), load_module(self.task.stage_folder / "reference.py")

    def _check_start(self, seed: int) -> tuple[bool, dict[str, OutputError]]:
        """One start: whether two passes have the same bits, and every error."""
        training, reference = self._start(seed)
        index, found, wanted = self._gradients(training, reference, seed)
        native = execution(self.task.toolkit, self.task.device) == "native"
        again = training.gradients(training.batch(index)) if native else found
        errors = self._compare_gradients(found, wanted)
        before, expected = self._train(training, reference, index, UPDATES if native else 1, found)
        errors |= self._compare_updates(before, training.state(), expected)
        return all(torch.equal(found[name], again[name]) for name in found), errors

    def _gradients(self, training: Training, reference: Any, first: int) -> tuple[int, Named, Named]:
        """The first batch from this number on that tells gradients apart from rounding; those found there, and wanted.

        Where a sequence is one token again and again, attention has nothing to choose, and what is left of its
        gradients is rounding alone.
        """
        state = _double(training.state())
        for index in range(first, first + BATCHES):
            tokens = training.batch(index)
            # Memory that nobody has written is NaN, but in compiled code, which would be compiled anew.
            with contextlib.nullcontext() if self.task.toolkit == "compiled" else unwritten_memory_is_nan():
                found = training.gradients(tokens)
            wanted = self._wanted(reference, state, tokens, training.choices())
            if not _vanishing(wanted):
                break
        return index, found, wanted

    def _train(
        self, training: Training, reference: Any, seed: int, steps: int, found: Named | None = None
    ) -> tuple[Named, Named]:
        """The state before some steps, each on a batch of its own, and what it should be after them.

        An update by AdamW is nearly the gradient's sign: it is held to the gradients that the model itself finds.

        found  those of the first step, if they are known
        """
        before = training.state()
        expected, memory = before, dict[str, Any]()
        for index in range(steps):
            tokens = training.batch(seed + index)
            gradients = _weights_only(found or training.gradients(tokens))
            training.step(tokens)
            expected, found = reference.update(expected, gradients, training.choices(), memory), None
        return before, expected

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

    def _compare_gradients(self, found: Named, wanted: Named) -> dict[str, OutputError]:
        return self._compare(
            {_as_gradient(name): one for name, one in found.items()},
            {_as_gradient(name): one for name, one in wanted.items()},
        )

    def _compare_updates(self, before: Named, found: Named, wanted: Named) -> dict[str, OutputError]:
        def changes(after: Named) -> dict[str, torch.Tensor]:
            return {f"update_{name}": after[name].double().cpu() - before[name].double().cpu() for name in wanted}

        return self._compare(changes(found), changes(wanted))

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


def _vanishing(wanted: Named) -> list[str]:
    """The weights whose gradient's terms cancel: what is left is rounding. One that is 0 exactly has no terms."""
    norms = {name: gradient.norm().item() for name, gradient in _weights_only(wanted).items()}
    whole = sum(norm**2 for norm in norms.values()) ** 0.5
    return [name for name, norm in norms.items() if 0 < norm < VANISHING * whole]


def _weights_only(found: Named) -> dict[str, torch.Tensor]:
    return {name: gradient for name, gradient in found.items() if name != "loss"}


def _double(tensors: Named) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().double().cpu() for name, tensor in tensors.items()}


def _worst(errors: Mapping[str, OutputError]) -> dict[str, OutputError]:
    """The largest error of the loss, of the gradients and of the updates. Fails: Wrong if one is more than allowed."""
    kinds = [[name for name in errors if name.startswith(kind)] for kind in ("loss", "grad_", "update_")]
    worst = {name: errors[name] for name in (max(names, key=lambda n: excess(errors[n])) for names in kinds)}
    name = max(worst, key=lambda n: excess(worst[n]))
    if excess(worst[name]) > 1:
        raise Wrong("wrong_output", told(name, worst[name]))
    return worst
