"""Seconds per call: batches long enough to resolve on CPU, single cold calls between events on CUDA."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

#: Calls before anything is timed: lazy initialisation, caches of the allocator.
WARM_UP_CALLS = 3
#: A CUDA sample starts after this many times the L2 cache has been read.
FLUSH_FACTOR = 2
#: The device spins this many times as long as the host took to issue a call; its clock is below this rate.
SPIN_FACTOR, SPIN_CLOCK_HZ, MIN_SPIN_CYCLES = 3, 2e9, 20_000


@dataclass
class CpuTimer:
    """Times batches of calls with the monotonic clock; caches stay as the calls leave them."""

    call: Callable[[], object]
    iterations: int = 1
    name: str = "perf_counter_ns"
    cold: bool = False
    host_bound: int = 0

    def calibrate(self, batch_seconds: float) -> None:
        """Warm up, then choose how many calls fill `batch_seconds`."""
        for _ in range(WARM_UP_CALLS):
            self.call()
        self.iterations = max(1, math.ceil(batch_seconds / max(self.sample(2)[1], 1e-9)))

    def sample(self, count: int) -> list[float]:
        """`count` samples in seconds per call."""
        samples = []
        for _ in range(count):
            start = time.perf_counter_ns()
            for _ in range(self.iterations):
                self.call()
            samples.append((time.perf_counter_ns() - start) / self.iterations * 1e-9)
        return samples


@dataclass
class CudaTimer:
    """Times single calls between CUDA events, each from a cold L2 cache, on a device that is kept busy meanwhile.

    Before each call the device reads a buffer larger than its L2, which leaves clean lines, and then spins for longer
    than the host needs to issue the call, so that the span holds device time alone. Where the device has reached the
    span's start before the call was issued all the same, the sample holds host time: `host_bound` counts those.
    """

    call: Callable[[], object]
    iterations: int = 1
    name: str = "cuda_event"
    cold: bool = True
    host_bound: int = 0

    def __post_init__(self) -> None:
        l2_bytes = torch.cuda.get_device_properties().L2_cache_size
        self._flush = torch.zeros(FLUSH_FACTOR * l2_bytes // 4, dtype=torch.float32, device="cuda")
        self._spin_cycles = 0

    def calibrate(self, batch_seconds: float) -> None:  # noqa: ARG002 - events resolve a single call
        """Warm up, and see how long the host takes to issue a call."""
        issue = 0.0
        for _ in range(WARM_UP_CALLS):
            torch.cuda.synchronize()
            start = time.perf_counter()
            self.call()
            issue = time.perf_counter() - start
        torch.cuda.synchronize()
        self._spin_cycles = int(SPIN_FACTOR * issue * SPIN_CLOCK_HZ) + MIN_SPIN_CYCLES

    def sample(self, count: int) -> list[float]:
        """`count` samples in seconds per call."""
        samples = []
        for _ in range(count):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            self._flush.sum()
            torch.cuda._sleep(self._spin_cycles)
            start.record()
            self.call()
            self.host_bound += start.query()
            end.record()
            torch.cuda.synchronize()
            samples.append(start.elapsed_time(end) * 1e-3)
        return samples


def step_threads() -> int:
    """Threads of a step on a CPU: half of those that torch would take.

    A step has thousands of small operations. With a thread for every processor each of them waits for the one that was
    disturbed, and two checks side by side for each other.
    """
    threads: int = torch.get_num_threads()
    return max(1, threads // 2)


def timer(call: Callable[[], object], device: str) -> CpuTimer | CudaTimer:
    """The timer for a device."""
    return CudaTimer(call) if device == "cuda" else CpuTimer(call)
