"""A model in training inside a worker: its step checked, measured and told apart on request."""

from __future__ import annotations

import math
import time
import traceback
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch

from perflab.analyse.stats import median
from perflab.catalogue import load_module
from perflab.contract import Unsupported
from perflab.measure import attribution, launches, memory
from perflab.measure.check import Wrong
from perflab.measure.step_check import StepCheck, give_back
from perflab.measure.task import Task, execution
from perflab.measure.timing import step_threads
from perflab.record import Step
from perflab.training import TrainingStage

#: Steps before anything is measured: the optimiser's state, lazy initialisation, the allocator's caches.
WARM_UP_STEPS = 2
#: Steps of a block, and blocks after which a model is made anew: two of them at least before an interval is looked at.
#: On a CPU turns are short, so that what slows the machine for a while slows all; on a GPU, where models have no room
#: side by side, each block has its own.
TURN = {"cpu": (1, 4), "cuda": (5, 1)}


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
        self._unprofiled = ""
        self._kept: Training | None = None
        #: How many steps each timed model has made.
        self._ages: list[int] = []
        self._blocks = 0
        if task.device == "cpu":
            torch.set_num_threads(step_threads())

    def check(self, seeds: list[int]) -> dict[str, Any]:
        """Accuracy of loss, gradients and update, from one start per seed.

        Every parameter is compared by itself; the worst gradient and the worst update are recorded under their names.

        Fails: Wrong.
        """
        return self._alone(lambda: self._step_check().check(seeds))

    def check_again(self, seed: int) -> dict[str, Any]:
        """After sampling: were all losses finite, and is a model right after the steps that a timed one makes?

        Fails: Wrong.
        """
        if not all(math.isfinite(loss) for loss in self._losses):
            raise Wrong("not_finite", "a loss of the timed steps is not finite")
        self._kept = None

        def later() -> dict[str, Any]:
            self._step_check().check_later(seed % 2**31, max(self._ages))
            return {}

        return self._alone(later)

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
            self._ages.append(WARM_UP_STEPS)
        samples = self._block(self._kept, count)
        self._blocks += 1
        if self._blocks % TURN[self.task.device][1] == 0:
            self._kept = None
            give_back(self.task.device)
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
        self._ages[-1] += count
        return samples

    def profile(self) -> None:
        """Profile a step between samples, for `attribute`, which says why if it cannot be.

        The model goes on from it, by a few more steps on the first batch.
        """
        try:
            self._observe(self._kept or self._warm())
        except Exception as error:
            traceback.print_exc()
            self._unprofiled = f"{type(error).__name__}: {error}"
            # Whatever the step left undone, no sample is taken of it.
            self._kept = None
        if self._kept is None:
            give_back(self.task.device)

    def _observe(self, training: Training) -> None:
        tokens = training.batch(0)
        for _ in range(1 if self._profiles else 2):
            seen = attribution.observe(lambda: training.step(tokens), self.task.device)
            self._ages[-1] += attribution.CALLS
        self._profiles.append(seen)

    def describe(self) -> dict[str, Any]:
        """Tokens, FLOPs and threads of a step."""

        def told() -> dict[str, Any]:
            training = self._make(self.task.shape, seed=0)
            threads = torch.get_num_threads() if self.task.device == "cpu" else None
            return Step(tokens=training.tokens, flops=training.flops, threads=threads).model_dump()

        return self._alone(told)

    def profiler_costs(self) -> list[float]:
        """What profiling an event took, in seconds, by every profile."""
        return [one.cost_of_event for one in self._profiles]

    def attribute(self, profiler_s: float) -> dict[str, Any]:
        """Parts of a step that takes as long as the sampled ones' median; profiler_s: what profiling an event takes.

        Fails: Unsupported if no step was profiled.
        """
        if not self._profiles:
            raise Unsupported(self._unprofiled or "there were too few rounds to profile a step in")
        return attribution.combine(self._profiles, median(self._seconds), profiler_s, self.task.device)

    def _step_check(self) -> StepCheck:
        return StepCheck(self.task, self.stage, self._make, self.convention)

    def _alone(self, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The work's result, after its models are gone: a GPU has room for one, and other cases wait for it."""
        try:
            return work()
        finally:
            give_back(self.task.device)

    def _warm(self) -> Training:
        """A new model of the full shape after its first steps, in memory that an earlier one has given back."""
        give_back(self.task.device)
        training = self._make(self.task.shape, seed=0)
        for index in range(WARM_UP_STEPS):
            training.step(training.batch(index))
        return training

    def _make(self, shape: Mapping[str, int], seed: int) -> Training:
        return self.make(shape, self.task.dtype, self.task.device, seed)


def _synchronise(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()
