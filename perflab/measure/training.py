"""A model in training inside a worker: its step checked, measured and told apart on request."""

from __future__ import annotations

import contextlib
import gc
import math
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch

from perflab.analyse.stats import median
from perflab.catalogue import load_module
from perflab.contract import Tolerance
from perflab.measure import attribution, launches, memory
from perflab.measure.check import Wrong, unwritten_memory_is_nan
from perflab.measure.comparison import BrokenReferenceError, Sums
from perflab.measure.task import Task, execution
from perflab.record import Accuracy, OutputError, Step
from perflab.training import TrainingStage

#: Steps before anything is measured: the optimiser's state, lazy initialisation, the allocator's caches.
WARM_UP_STEPS = 2
#: Steps of a block, and blocks after which a model is made anew. On a CPU turns are short, so that what slows the
#: machine for a while slows all; on a GPU, where models have no room side by side, each block has its own.
TURN = {"cpu": (1, 12), "cuda": (5, 1)}

Named = Mapping[str, torch.Tensor]


class Training(Protocol):
    """What an implementation of a training stage gives: a model with its optimiser and its batches.

    tokens, flops  of one step; FLOPs of the model alone: recomputation does not count
    """

    tokens: int
    flops: float

    def batch(self, index: int) -> torch.Tensor:
        """The tokens of one step; the same for every implementation of the stage."""

    def loss(self, tokens: torch.Tensor) -> torch.Tensor:
        """The loss with its graph."""

    def gradients(self, tokens: torch.Tensor) -> dict[str, torch.Tensor]:
        """The loss under `loss`, and the gradient of every parameter by its name, without an update."""

    def step(self, tokens: torch.Tensor) -> torch.Tensor:
        """Forward, backward, update; gives the loss."""

    def choices(self) -> dict[str, torch.Tensor]:
        """Where the last forward chose, and what: the reference takes a choice over that rounding explains."""

    def state(self) -> dict[str, torch.Tensor]:
        """Copies of the parameters by name, and of what else training changes."""


class TrainingSession:
    """A loaded case of a training stage. Methods are the requests that a worker answers."""

    def __init__(self, task: Task, stage: TrainingStage) -> None:
        self.task, self.stage = task, stage
        module = load_module(task.implementation)
        self.make: Callable[..., Training] = getattr(module, task.function)
        self.convention: Mapping[str, str] = getattr(module, "CONVENTION", {})
        self._batches = 0
        self._losses: list[float] = []
        self._seconds: list[float] = []
        self._profiles: list[attribution.Observed] = []
        self._kept: Training | None = None
        self._blocks = 0
        if task.device == "cpu":
            # A step has thousands of small operations. With a thread for every processor each of them waits for the one
            # that was disturbed, and two checks side by side for each other.
            torch.set_num_threads(max(1, torch.get_num_threads() // 2))

    def check(self, seeds: list[int]) -> dict[str, Any]:
        """Accuracy of loss, gradients and update, from one start per seed.

        Every parameter is compared by itself; the worst gradient and the worst update are recorded under their names.

        Fails: Wrong.
        """
        return self._alone(lambda: self._check(seeds))

    def _check(self, seeds: list[int]) -> dict[str, Any]:
        if execution(self.task.toolkit, self.task.device) == "native":
            # A model that does not fit says so before the reference of a smaller one takes memory too.
            self._make(self.task.shape, seed=0)
            self._give_back()
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
        training, reference = self._make(self.task.check_shape, seed), self._reference()
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

    def check_again(self, seed: int) -> dict[str, Any]:
        """After sampling: were all losses finite, and is a model made anew still right? Fails: Wrong."""
        if not all(math.isfinite(loss) for loss in self._losses):
            raise Wrong("not_finite", "a loss of the timed steps is not finite")
        return self.check([seed % 2**31])

    def traffic(self) -> dict[str, Any]:
        """Bytes that one step moves, by dispatch: eager code only."""
        from perflab.measure.traffic import dispatch

        def count() -> dict[str, Any]:
            training = self._warm()
            tokens = training.batch(0)
            return dispatch.count(lambda: training.step(tokens)).model_dump()

        return self._alone(count)

    def memory(self) -> dict[str, Any]:
        """Bytes that the loss keeps for backward, and the most alive in a step above weights and optimiser."""

        def measure() -> dict[str, Any]:
            training = self._warm()
            tokens = training.batch(0)
            return memory.measure_step(
                lambda: training.loss(tokens), lambda: training.step(tokens), self.task.device
            ).model_dump()

        with launches.skipped(self.task.toolkit, execution(self.task.toolkit, self.task.device)):
            return self._alone(measure)

    def calibrate(self, batch_seconds: float) -> dict[str, Any]:  # noqa: ARG002 - a step is its own batch
        """What the timer is like."""
        threads = f", {torch.get_num_threads()} threads" if self.task.device == "cpu" else ""
        timer = f"perf_counter_ns, device synchronised{threads}"
        return {"iterations": 1, "timer": timer, "cold": False, "block": TURN[self.task.device][0], "profiled": True}

    def sample(self, count: int) -> tuple[list[float], int]:
        """Seconds of `count` steps on batches of their own, of a model that is made anew after some blocks."""
        if self._kept is None:
            self._kept = self._warm()
        samples = self._block(self._kept, count)
        self._blocks += 1
        if self._blocks % TURN[self.task.device][1] == 0:
            self._kept = None
            self._give_back()
        return samples, 0

    def _block(self, training: Training, count: int) -> list[float]:
        samples = []
        for _ in range(count):
            tokens = training.batch(self._batches)
            self._batches += 1
            _synchronise(self.task.device)
            start = time.perf_counter_ns()
            loss = training.step(tokens)
            _synchronise(self.task.device)
            samples.append((time.perf_counter_ns() - start) * 1e-9)
            self._losses.append(loss.item())
        self._seconds += samples
        return samples

    def profile(self) -> None:
        """Profile a step between samples, for `attribute`."""
        training = self._kept or self._warm()
        tokens = training.batch(0)
        if not self._profiles:
            attribution.observe(lambda: training.step(tokens), self.task.device)
        self._profiles.append(attribution.observe(lambda: training.step(tokens), self.task.device))
        if self._kept is None:
            del training
            self._give_back()

    def attribute(self) -> dict[str, Any]:
        """Tokens and FLOPs of a step; if steps were sampled, the parts of one that takes as long as their median."""

        def told() -> dict[str, Any]:
            training = self._make(self.task.shape, seed=0)
            return Step(tokens=training.tokens, flops=training.flops).model_dump()

        step = self._alone(told)
        if not self._seconds:
            return step
        if not self._profiles:
            self.profile()
        return step | attribution.combine(self._profiles, median(self._seconds), self.task.device)

    def _alone(self, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The work's result, after its models are gone: a GPU has room for one, and other cases wait for it."""
        try:
            return work()
        finally:
            self._give_back()

    def _give_back(self) -> None:
        gc.collect()
        if self.task.device == "cuda":
            torch.cuda.empty_cache()

    def _warm(self) -> Training:
        """A new model of the full shape after its first steps, in memory that an earlier one has given back."""
        self._give_back()
        training = self._make(self.task.shape, seed=0)
        for index in range(WARM_UP_STEPS):
            training.step(training.batch(index))
        return training

    def _make(self, shape: Mapping[str, int], seed: int) -> Training:
        return self.make(shape, self.task.dtype, self.task.device, seed)

    def _reference(self) -> Any:
        return load_module(self.task.stage_folder / "reference.py")


def _as_gradient(name: str) -> str:
    return name if name == "loss" else f"grad_{name}"


def _double(tensors: Named) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().double().cpu() for name, tensor in tensors.items()}


def _excess(error: OutputError) -> float:
    """How much of what is allowed the error takes."""
    return max(error.relative_l2_error / error.tolerance_l2, error.elementwise_error / error.tolerance_elementwise)


def _synchronise(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()
