"""One case inside a worker: load it once, then check, count, compile and sample it on request."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from typing import Any

import torch

from perflab import machine
from perflab.catalogue import load_module
from perflab.contract import Stage
from perflab.measure import ceiling, inputs
from perflab.measure import check as checking
from perflab.measure.task import Task, execution
from perflab.measure.timing import CpuTimer, CudaTimer, timer
from perflab.record import Compile, Traffic

#: The architecture that offline compilation reports on.
COMPILE_TARGET = "sm_90a"


class Session:
    """A loaded case. Methods are the requests that a worker answers."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.stage: Stage = load_module(task.stage_folder / "stage.py").STAGE
        self.function: Callable[..., Any] = getattr(load_module(task.implementation), task.function)
        self._timer: CpuTimer | CudaTimer | None = None
        self._given: dict[str, torch.Tensor] | None = None

    def check(self, seeds: list[int]) -> dict[str, Any]:
        """Accuracy of the case. Fails: checking.Wrong."""
        with torch.no_grad():
            return checking.check(self._subject(), self.task.check_shape, seeds).model_dump()

    def check_again(self, seed: int) -> dict[str, Any]:
        """Accuracy after sampling, in the sampled tensors. Fails: checking.Wrong; RuntimeError before calibrate."""
        if self._given is None:
            raise RuntimeError("calibrate comes before check_again")
        with torch.no_grad():
            return checking.check_in_place(self._subject(), self._given, self.task.shape, seed).model_dump()

    def _subject(self) -> checking.Subject:
        task = self.task
        reference = getattr(load_module(task.stage_folder / "reference.py"), task.function)
        return checking.Subject(
            self.stage, reference, self.function, task.dtype, task.device,
            poison=task.toolkit != "compiled", repeat=execution(task.toolkit, task.device) == "native",
        )  # fmt: skip

    def traffic(self) -> dict[str, Any]:
        """Bytes that one call at the full shape moves, by the source that fits the toolkit."""
        given = inputs.empty(self.stage, self.task.shape, self.task.dtype, self.task.device)
        if self.task.toolkit != "triton":
            for tensor in given.values():
                tensor.zero_()
        with torch.no_grad():
            return self._count(lambda: self._call(given), given).model_dump()

    def _count(self, call: Callable[[], object], given: dict[str, torch.Tensor]) -> Traffic:
        match self.task.toolkit:
            case "compiled":
                from perflab.measure.traffic import inductor

                return inductor.count(call)
            case "triton":
                from perflab.measure.traffic import interpreted

                return interpreted.count(call, names=given)
            case _:
                from perflab.measure.traffic import dispatch

                return dispatch.count(call)

    def compile(self) -> dict[str, Any]:
        """Compile every kernel that one call at the full shape launches, for Hopper, without launching any."""
        module = {"triton": "compile_triton", "tilelang": "compile_report"}[self.task.toolkit]
        compile_for = importlib.import_module(f"perflab.measure.{module}").compile_for
        # On the CPU, whose memory costs nothing until it is touched: on meta an operator would not reach its launches.
        given = inputs.empty(self.stage, self.task.shape, self.task.dtype, "cpu")
        start = time.perf_counter()
        with torch.no_grad():
            kernels = compile_for(lambda: self._call(given), COMPILE_TARGET)
        return Compile(seconds=time.perf_counter() - start, target=COMPILE_TARGET, kernels=kernels).model_dump()

    def calibrate(self, batch_seconds: float) -> dict[str, Any]:
        """Warm up and choose the batch; tells the timer's properties."""
        given = inputs.draw(self.stage, self.task.shape, self.task.dtype, self.task.device, seed=0)
        self._given = given
        self._timer = timer(lambda: self._call(given), self.task.device)
        with torch.no_grad():
            self._timer.calibrate(batch_seconds)
        return {"iterations": self._timer.iterations, "timer": self._timer.name, "cold": self._timer.cold}

    def sample(self, count: int) -> tuple[list[float], int]:
        """`count` samples in seconds per call, and how many so far hold host time. Fails: RuntimeError uncalibrated."""
        if self._timer is None:
            raise RuntimeError("calibrate comes before sample")
        with torch.no_grad():
            return self._timer.sample(count), self._timer.host_bound

    def _call(self, given: dict[str, torch.Tensor]) -> object:
        return self.function(*given.values(), **self.stage.params)


def environment() -> dict[str, Any]:
    """What torch sees here: threads and CUDA devices."""
    return {
        "threads": torch.get_num_threads(),
        "cuda_available": torch.cuda.is_available(),
        "cuda_build": torch.version.cuda,
        "capability": torch.cuda.get_device_capability() if torch.cuda.is_available() else None,
        "l2_bytes": torch.cuda.get_device_properties().L2_cache_size if torch.cuda.is_available() else None,
    }


def measure_ceiling(device: str) -> list[dict[str, Any]]:
    """The memory ceiling of `device`."""
    return ceiling.measure(device, machine.last_level_cache_bytes())


def measure_noise(device: str, samples: int) -> dict[str, float]:
    """How far two copies of one function differ on `device`."""
    return ceiling.noise(device, samples)
