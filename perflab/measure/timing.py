"""Seconds per call: batches long enough to resolve on CPU, single cold calls between events on CUDA."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

#: Calls before anything is timed: lazy initialisation, caches of the allocator.
WARM_UP_CALLS = 3
#: A CUDA sample starts after this many times the L2 cache has been written.
FLUSH_FACTOR = 2


@dataclass
class CpuTimer:
    """Times batches of calls with the monotonic clock; caches stay as the calls leave them."""

    call: Callable[[], object]
    iterations: int = 1
    name: str = "perf_counter_ns"
    cold: bool = False

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
    """Times single calls between CUDA events; the L2 cache is overwritten before each, outside the timed span.

    The overwriting also keeps the device busy while the host issues the call, so host time does not show.
    """

    call: Callable[[], object]
    iterations: int = 1
    name: str = "cuda_event"
    cold: bool = True

    def __post_init__(self) -> None:
        l2_bytes = torch.cuda.get_device_properties().L2_cache_size
        self._flush = torch.empty(FLUSH_FACTOR * l2_bytes, dtype=torch.int8, device="cuda")

    def calibrate(self, batch_seconds: float) -> None:  # noqa: ARG002 - events resolve a single call
        """Warm up."""
        for _ in range(WARM_UP_CALLS):
            self.call()
        torch.cuda.synchronize()

    def sample(self, count: int) -> list[float]:
        """`count` samples in seconds per call."""
        events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(count)]
        for start, end in events:
            self._flush.zero_()
            start.record()
            self.call()
            end.record()
        torch.cuda.synchronize()
        return [start.elapsed_time(end) * 1e-3 for start, end in events]


def timer(call: Callable[[], object], device: str) -> CpuTimer | CudaTimer:
    """The timer for a device."""
    return CudaTimer(call) if device == "cuda" else CpuTimer(call)
