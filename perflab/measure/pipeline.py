"""A pipeline of processes as a case: its losses checked against one process's, its steps timed by its own ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from perflab.analyse.stats import median
from perflab.catalogue import load_module
from perflab.contract import Unsupported
from perflab.measure.check import Wrong
from perflab.measure.comparison import Sums, excess, told
from perflab.measure.task import Task
from perflab.record import Accuracy, Span, Step
from perflab.training import PipelineStage


@dataclass(frozen=True)
class PipelineRun:
    """What a run of a pipeline leaves.

    step_s       seconds of every step but the first
    losses       of all steps
    predicted_s  seconds of a step, by simulation from what was measured of the parts
    measured, predicted  the course of one step: rank, stream, begin and end in seconds, and what ran
    assumed      what the prediction rests on, by name, in stored units
    simulated    what else the simulation gave, likewise
    """

    step_s: Sequence[float]
    losses: Sequence[float]
    tokens: int
    flops: float
    predicted_s: float
    measured: Sequence[Span]
    predicted: Sequence[Span]
    assumed: Mapping[str, float]
    simulated: Mapping[str, float]


class PipelineSession:
    """A loaded case of a pipeline stage. Methods are the requests that a worker answers."""

    def __init__(self, task: Task, stage: PipelineStage) -> None:
        self.task, self.stage = task, stage
        module = load_module(task.implementation)
        self.run: Callable[..., PipelineRun] = getattr(module, task.function)
        self.convention: Mapping[str, str] = getattr(module, "CONVENTION", {})
        self._runs: list[PipelineRun] = []
        self._losses: list[float] = []

    def check(self, seeds: list[int]) -> dict[str, Any]:
        """Accuracy of the losses of some steps, from one start per seed. Fails: Wrong."""
        reference = getattr(load_module(self.task.stage_folder / "reference.py"), self.task.function)
        tolerance = self.stage.tolerance(self.task.dtype, "losses")
        sums = Sums(absolute=tolerance.absolute)
        for seed in seeds:
            where = (self.task.check_shape, self.task.dtype, self.task.device, seed, self.stage.steps)
            found, wanted = self.run(*where).losses, reference(*where, **self.convention)
            if len(found) != len(wanted):
                raise Wrong("wrong_shape", f"losses: {len(found)} steps of {len(wanted)}")
            sums.add(_finite(found), torch.tensor(wanted, dtype=torch.float64))
        error = sums.result(tolerance)
        if excess(error) > 1:
            raise Wrong("wrong_output", told("losses", error))
        return Accuracy(
            max_abs_error=error.max_abs_error, relative_l2_error=error.relative_l2_error, tolerance=error.tolerance_l2,
            outputs={"losses": error}, shape=self.task.check_shape, draws=len(seeds), deterministic=None,
        ).model_dump()  # fmt: skip

    def check_again(self, seed: int) -> dict[str, Any]:
        """After sampling: were all losses finite, and are those of another start right? Fails: Wrong."""
        _finite(self._losses)
        return self.check([seed % 2**31])

    def calibrate(self, batch_seconds: float) -> dict[str, Any]:  # noqa: ARG002 - a step is its own batch
        """What the timer is like."""
        return {
            "iterations": 1,
            "timer": "perf_counter, the rank that took longest",
            "cold": False,
            "block": 3,
            "profiled": False,
        }

    def sample(self, count: int) -> tuple[list[float], int]:
        """Seconds of `count` steps, of processes that are started for them."""
        run = self.run(self.task.shape, self.task.dtype, self.task.device, 0, count + 1)
        self._runs.append(run)
        self._losses += run.losses
        return list(run.step_s), 0

    def describe(self) -> dict[str, Any]:
        """Tokens, FLOPs, the median prediction, the last run's course of a step. Fails: RuntimeError before a run."""
        if not self._runs:
            raise RuntimeError("sample comes before describe")
        run, predicted_s = self._runs[-1], median([one.predicted_s for one in self._runs])
        return Step(
            tokens=run.tokens, flops=run.flops, predicted_s=predicted_s, assumed=dict(run.assumed),
            simulated=dict(run.simulated), measured=list(run.measured), predicted=list(run.predicted),
            collector="the ranks' own clocks; simulation",
        ).model_dump()  # fmt: skip

    def profiler_costs(self) -> list[float]:
        """None: nothing is profiled."""
        return []

    def attribute(self, profiler_s: float) -> dict[str, Any]:  # noqa: ARG002
        """Nothing beyond what `describe` says: the ranks note their own courses."""
        return {}

    def memory(self) -> dict[str, Any]:
        """Fails: Unsupported: the processes are not looked into."""
        raise Unsupported("a pipeline's processes are not looked into")

    traffic = memory


def _finite(losses: Sequence[float]) -> torch.Tensor:
    found = torch.tensor(losses, dtype=torch.float64)
    if not torch.isfinite(found).all():
        raise Wrong("not_finite", "a loss is not finite")
    return found
