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
from perflab.measure.comparison import GRADIENT
from perflab.measure.passes import Work, has_backward, require_gradients
from perflab.measure.pipeline import PipelineSession
from perflab.measure.task import Task, execution
from perflab.measure.timing import CpuTimer, CudaTimer, timer
from perflab.measure.training import TrainingSession
from perflab.record import Compile
from perflab.training import PipelineStage, TrainingStage

#: The architecture that offline compilation reports on.
COMPILE_TARGET = "sm_90a"


def open_case(task: Task) -> Session | TrainingSession | PipelineSession:
    """The case's session, by the kind of its stage."""
    stage = load_module(task.stage_folder / "stage.py").STAGE
    if task.toolkit == "compiled":
        from torch._dynamo import config

        # Past its limit of versions torch would quietly run eager code, under compiled code's name.
        config.fail_on_recompile_limit_hit = True
    if isinstance(stage, PipelineStage):
        return PipelineSession(task, stage)
    return TrainingSession(task, stage) if isinstance(stage, TrainingStage) else Session(task, stage)


class Session:
    """A loaded case. Methods are the requests that a worker answers."""

    def __init__(self, task: Task, stage: Stage) -> None:
        self.task, self.stage = task, stage
        self.function: Callable[..., Any] = getattr(load_module(task.implementation), task.function)
        self._timer: CpuTimer | CudaTimer | None = None
        self._work: Work | None = None
        if task.toolkit == "compiled" and task.pass_ == "backward":
            from torch._functorch import config as functorch_config

            # Compiled backward otherwise overwrites what it was given, and could run once only.
            functorch_config.donated_buffer = False

    def check(self, seeds: list[int]) -> dict[str, Any]:
        """Accuracy of the case. Fails: checking.Wrong."""
        return checking.check(self._subject(), self.task.check_shape, seeds).model_dump()

    def check_again(self, seed: int) -> dict[str, Any]:
        """Accuracy after sampling, in the sampled tensors. Fails: checking.Wrong; RuntimeError before calibrate."""
        if self._work is None:
            raise RuntimeError("calibrate comes before check_again")
        return checking.check_in_place(self._subject(), self._work, self.task.shape, seed).model_dump()

    def _subject(self) -> checking.Subject:
        task = self.task
        reference = getattr(load_module(task.stage_folder / "reference.py"), task.function)
        return checking.Subject(
            self.stage, reference, self.function, task.dtype, task.device, task.pass_,
            recompiles=task.toolkit == "compiled", repeat=execution(task.toolkit, task.device) == "native",
        )  # fmt: skip

    def traffic(self) -> dict[str, Any]:
        """Bytes that one call at the full shape moves, by the source that fits the toolkit."""
        work = self._unwritten_work(self.task.device)
        match self.task.toolkit:
            case "compiled":
                from perflab.measure.traffic import inductor

                return inductor.count(work.call, work.prepare).model_dump()
            case "triton":
                from perflab.measure.traffic import interpreted

                names = {**work.given, **{f"{GRADIENT}{name}": tensor for name, tensor in work.cotangents.items()}}
                # The graph is made under the counter too, because it runs only as many programs as it must.
                interpreted.count(work.prepare)
                return interpreted.count(work.call, names=names).model_dump()
            case _:
                from perflab.measure.traffic import dispatch

                work.prepare()
                return dispatch.count(work.call).model_dump()

    def memory(self) -> dict[str, Any]:
        """Bytes that the pass keeps and needs at the full shape."""
        from perflab.measure import launches, memory

        task = self.task
        with launches.skipped(task.toolkit, execution(task.toolkit, task.device)):
            return memory.measure(self._unwritten_work(task.device), task.device).model_dump()

    def compile(self) -> dict[str, Any]:
        """Compile every kernel that one call at the full shape launches, for Hopper, without launching any."""
        module = {"triton": "compile_triton", "tilelang": "compile_report"}[self.task.toolkit]
        compile_for = importlib.import_module(f"perflab.measure.{module}").compile_for
        # On the CPU, whose memory costs nothing until it is touched: on meta an operator would not reach its launches.
        work = self._unwritten_work("cpu")
        start = time.perf_counter()
        kernels = compile_for(work.call, COMPILE_TARGET, work.prepare)
        return Compile(seconds=time.perf_counter() - start, target=COMPILE_TARGET, kernels=kernels).model_dump()

    def calibrate(self, batch_seconds: float) -> dict[str, Any]:
        """Warm up and choose the batch; tells the timer's properties."""
        self._work = work = self._subject().work(self.task.shape, seed=0)
        work.prepare()
        self._timer = timer(work.call, self.task.device)
        self._timer.calibrate(batch_seconds)
        return {"iterations": self._timer.iterations, "timer": self._timer.name, "cold": self._timer.cold}

    def sample(self, count: int) -> tuple[list[float], int]:
        """`count` samples in seconds per call, and how many so far hold host time. Fails: RuntimeError uncalibrated."""
        if self._timer is None:
            raise RuntimeError("calibrate comes before sample")
        return self._timer.sample(count), self._timer.host_bound

    def _unwritten_work(self, device: str) -> Work:
        """The pass on tensors whose values do not matter; zeros where arithmetic will really be done on them."""
        shape = (self.stage, self.task.shape, self.task.dtype, device)
        given, cotangents = inputs.empty(*shape), {}
        if has_backward(self.task.pass_):
            require_gradients(self.stage, given)
            cotangents = inputs.empty_cotangents(*shape)
        if self.task.toolkit not in ("triton", "tilelang"):
            with torch.no_grad():
                for tensor in (*given.values(), *cotangents.values()):
                    tensor.zero_()
        return Work(self.stage, self.function, self.task.pass_, self.task.shape, given, cotangents)


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


def measure_compute(device: str) -> dict[str, Any]:
    """The bandwidth, matrix product rate and launch cost of `device` for training steps."""
    return ceiling.compute(device, machine.last_level_cache_bytes())


def measure_noise(device: str, samples: int) -> dict[str, float]:
    """How far two copies of one function differ on `device`."""
    return ceiling.noise(device, samples)
